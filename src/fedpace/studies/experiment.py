"""One run of a study: a scheme and a seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedpace.data.partition import power_law_sizes
from fedpace.data.shards import Split
from fedpace.data.synthetic import PAPER_SIZES, synthetic
from fedpace.devices.distributions import usual_times
from fedpace.devices.round_times import RoundTimes, Steady, Varying
from fedpace.errors import InputError, nearest
from fedpace.estimation.adaptive import (
    Outcome,
    Pilots,
    learned_profile,
    run_adaptive,
    run_known,
)
from fedpace.estimation.gradients import estimated_grad_norms
from fedpace.models.logistic import Logistic
from fedpace.profile import FloatArray, Profile
from fedpace.rounds import schedules
from fedpace.rounds.simulator import Simulator
from fedpace.rounds.stopping import Stop
from fedpace.sampling.schemes import SCHEMES, VARIANTS, Scheme
from fedpace.seeds import Seeds
from fedpace.studies.study import Study

# Schemes that need nothing but the sample counts: no pilots.
WITHOUT_PILOTS = ("full", "uniform", "weighted", "uniform-published")


def run_one(study: Study, scheme: str, seed: int) -> Outcome:
    """Run one scheme with one seed; the same arguments give the same numbers anywhere."""
    backend = simulator(study, seed)
    function = known_scheme(scheme)
    stop = Stop(**study.stop.model_dump())
    schedule = parsed_schedule(study.training.schedule)
    seeds = Seeds(seed)
    known = Profile(backend.weights, backend.usual_times, np.ones(backend.weights.size))
    if scheme in WITHOUT_PILOTS:
        return run_known(
            backend, function, known, k=study.training.k, schedule=schedule, stop=stop, seeds=seeds
        )
    if study.sampling.oracle:
        known = measured_profile(study, backend, seeds)
        return run_known(
            backend,
            function,
            known,
            k=study.training.k,
            schedule=schedule,
            stop=stop,
            seeds=seeds,
            max_weight=study.sampling.max_weight,
        )
    return run_adaptive(
        backend,
        function,
        k=study.training.k,
        schedule=schedule,
        stop=stop,
        seeds=seeds,
        pilots=Pilots(study.pilots.thresholds, study.pilots.rounds),
        c_over_s0=study.sampling.c_over_s0,
        max_weight=study.sampling.max_weight,
    )


def measured_profile(study: Study, backend: Simulator, seeds: Seeds) -> Profile:
    """Return what an oracle knows: G from a whole run of weighted sampling, and c as given.

    That run's time is not counted. c is the study's, or S_0 where it gives none.
    """
    blank = Profile(backend.weights, backend.usual_times, np.ones(backend.weights.size))
    outcome = run_known(
        backend,
        SCHEMES["weighted"],
        blank,
        k=study.training.k,
        schedule=parsed_schedule(study.training.schedule),
        stop=Stop(**study.stop.model_dump()),
        seeds=seeds,
    )
    grad_norms = estimated_grad_norms(outcome.history.rows, backend.weights.size)
    return learned_profile(backend, grad_norms, study.sampling.c_over_s0)


def known_scheme(name: str) -> Scheme:
    """Return a scheme or a variant by name, or say which name was meant."""
    schemes = SCHEMES | VARIANTS
    if name not in schemes:
        raise InputError(f"schemes must be known names, got '{name}'; {nearest(name, schemes)}")
    return schemes[name]


def simulator(study: Study, seed: int) -> Simulator:
    """Build the backend of a run: all schemes of a seed share data, initial model and times."""
    seeds = Seeds(seed)
    data = split(study, seed)
    usual = usual_times(study.devices.times, data.train.sizes, seeds.stream("times"))
    training = study.training
    return Simulator(
        data,
        Logistic(data.train.x.shape[1], study.data.classes),
        round_times(study, usual, seeds),
        seeds,
        local_steps=training.local_steps,
        batch=training.batch,
        weight_decay=training.weight_decay,
        clip=training.clip,
    )


def split(study: Study, seed: int) -> Split:
    """Draw the data: the study's one draw, or this run's own."""
    section = study.data
    rng = Seeds(seed if section.seed is None else section.seed).stream("data")
    sizes = np.array(PAPER_SIZES)
    if section.sizes == "power-law":
        sizes = power_law_sizes(
            section.clients,
            section.samples,
            rng,
            exponent=section.exponent,
            smallest=section.smallest,
        )
    return synthetic(
        sizes,
        rng,
        alpha=section.alpha,
        beta=section.beta,
        features=section.features,
        classes=section.classes,
        test_share=section.test_share,
    )


def round_times(study: Study, usual: FloatArray, seeds: Seeds) -> RoundTimes:
    """Return steady times, or varying ones where the study asks for any variation."""
    devices = study.devices
    if not (devices.noise or devices.drift or devices.busy):
        return Steady(usual)
    return Varying(
        usual,
        seeds,
        noise=devices.noise,
        drift=devices.drift,
        period=devices.period,
        busy=devices.busy,
        busy_factor=devices.busy_factor,
    )


def parsed_schedule(text: str) -> schedules.Schedule:
    """Return the schedule of a text such as "inverse:0.1".

    >>> parsed_schedule("bound:0.5:50")(0)
    0.08
    """
    name, *parameters = text.split(":")
    known: dict[str, tuple[Callable[..., schedules.Schedule], int]] = {
        "inverse": (schedules.inverse, 1),
        "constant": (schedules.constant, 1),
        "bound": (schedules.of_the_bound, 2),
    }
    try:
        make, count = known[name]
        values = [float(each) for each in parameters]
        if len(values) != count or not all(0 < value < np.inf for value in values):
            raise ValueError
    except (KeyError, ValueError):
        raise InputError(
            f"schedule must be inverse:RATE, constant:RATE or bound:MU:GAMMA, got '{text}'; "
            "write inverse:0.1"
        ) from None
    return make(*values)
