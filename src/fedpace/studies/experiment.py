"""One run of a study: a scheme and a seed."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from fedpace.checks import FloatArray, one_per_client, positive_column
from fedpace.data.cache import VARIABLE
from fedpace.data.image_files import pool_files
from fedpace.data.images import CLASSES, image_split, load_pool, standardised
from fedpace.data.partition import power_law_sizes
from fedpace.data.shards import Shards, Split
from fedpace.data.synthetic import PAPER_SIZES, synthetic
from fedpace.errors import InputError, MissingExtraError
from fedpace.estimation.learned import learn, nothing_learned, profile_of
from fedpace.estimation.no_barrier import BUFFERS
from fedpace.estimation.pilots import Piloted
from fedpace.estimation.policy import (
    Pilots,
    WarmUp,
    check_with_barrier,
    check_without_barrier,
    sampler_for,
    stream_sampler_for,
)
from fedpace.estimation.solve import Solve
from fedpace.lookup import GIVEN, found
from fedpace.models.logistic import Logistic
from fedpace.models.model import Model
from fedpace.models.small_cnn import SmallCnn
from fedpace.profile import Profile
from fedpace.rounds import schedules
from fedpace.rounds.backend import Backend
from fedpace.rounds.buffers import buffered
from fedpace.rounds.checkpoint import Journal
from fedpace.rounds.rows import Row
from fedpace.rounds.run import train
from fedpace.rounds.sampler import Known, Sampler
from fedpace.rounds.server import server_named
from fedpace.rounds.simulator import Simulator
from fedpace.rounds.stopping import Stop
from fedpace.rounds.training import Outcome
from fedpace.sampling.schemes import SCHEMES, needs_counts_only
from fedpace.seeds import Seeds
from fedpace.studies.own import GROUP, own_model, own_split
from fedpace.studies.study import ImagesSection, OwnSection, Study, SyntheticSection
from fedpace.times.availability import check_availability, with_availability
from fedpace.times.distributions import FLASH, usual_times
from fedpace.times.links import FLASH as LINKS
from fedpace.times.links import linked
from fedpace.times.round_times import RoundTimes, Steady, Varying, slower
from fedpace.times.traces import data_file, whole_file

# Of an image of MNIST or EMNIST.
PIXELS = 28 * 28
# The kinds of data that can be drawn here.
KINDS = "synthetic, mnist or emnist-lower"
# What of the training's section is for clients.
LOCAL = {"local_steps", "batch", "weight_decay", "clip", "optimiser", "proximal"}
# What of the devices' section makes times vary.
VARIATION = {"noise", "drift", "period", "busy", "busy_factor", "spell"}
SCHEDULES: dict[str, Callable[..., schedules.Schedule]] = {
    "inverse": schedules.inverse,
    "constant": schedules.constant,
    "bound": schedules.of_the_bound,
}


def run_one(
    study: Study, scheme: str, seed: int, *, watch: Callable[[Row], object] | None = None
) -> Outcome:
    """Run one scheme with one seed; the same arguments give the same numbers anywhere."""
    return run_with(simulator(study, seed), study, scheme, seed, watch=watch)


def run_with(
    backend: Backend,
    study: Study,
    scheme: str,
    seed: int,
    *,
    journal: Journal | None = None,
    watch: Callable[[Row], object] | None = None,
) -> Outcome:
    """Run one scheme with one seed on the given backend."""
    drawn_by = sampler(study, scheme, backend, Seeds(seed))
    return train(
        backend,
        drawn_by,
        server=buffered(server_named(study.training.server, drawn_by), backend),
        schedule=parsed_schedule(study.training.schedule),
        stop=stopping(study),
        seeds=Seeds(seed),
        evaluate_every=1 if study.network is None else study.network.evaluate_every,
        journal=journal,
        watch=watch,
        **_barrier(study, scheme),
    )


def _barrier(study: Study, scheme: str) -> dict[str, Any]:
    """Return what `train` is told of rounds, or that there are none."""
    training = study.training
    if not training.asynchronous:
        return {"take": training.take, "deadline": training.deadline}
    own = study.sampling.knobs.get(scheme, {}).get("buffer", training.buffer)
    buffer = BUFFERS.get(scheme, own)
    return {"mode": training.mode, "at_once": training.slots, "buffer": buffer}


def check_mode(study: Study, schemes: Sequence[str]) -> None:
    """Refuse schemes that a study's mode has no place for, and more clients at work than it has."""
    training, count = study.training, client_count(study)
    if training.asynchronous and training.slots > count:
        problem = f"at_once must be at most the number of clients, got {training.slots} for {count}"
        raise InputError(f"{problem}; set training.at_once={max(count // 2, 1)}")
    for scheme in schemes:
        if training.asynchronous:
            check_without_barrier(scheme)
        else:
            check_with_barrier(scheme)


def sampler(study: Study, scheme: str, backend: Backend, seeds: Seeds) -> Sampler:
    """Return what a run draws by."""
    if study.training.asynchronous:
        return _stream_sampler(study, scheme, backend)
    section, k = study.sampling, study.training.k
    settings = section.model_dump(include={"refresh", "max_weight", "c_over_s0"})
    if scheme == "pace":  # which caps the weight of a round
        del settings["max_weight"]
    # A buffer has no meaning in rounds; a scheme that has one without a barrier may be in both.
    knobs = {name: x for name, x in section.knobs.get(scheme, {}).items() if name != "buffer"}
    made = sampler_for(scheme, k, learn=_learning(study), knobs=knobs, **settings)
    if not section.oracle or not isinstance(made, (Solve, Piloted)):
        return made
    if needs_counts_only(made.scheme):
        return made
    if backend.usual_times is None:
        problem = "sampling.oracle must be false where times are not known before"
        raise InputError(f"{problem}; set sampling.oracle=false")
    profile = measured_profile(study, backend, seeds)
    return Solve(made.scheme, k, max_weight=section.max_weight, profile=profile)


def _stream_sampler(study: Study, scheme: str, backend: Backend) -> Sampler:
    """Return what a run without a barrier draws by."""
    if study.sampling.oracle:
        remedy = "set sampling.oracle=false, or training.mode=synchronous"
        raise InputError(f"sampling.oracle needs rounds, got mode asynchronous; {remedy}")
    settings = study.sampling.model_dump(include={"warm_up", "refresh", "max_weight", "c_over_s0"})
    return stream_sampler_for(
        scheme,
        study.training.slots,
        buffer=study.training.buffer,
        times_known=backend.usual_times is not None,
        knobs=study.sampling.knobs.get(scheme),
        **settings,
    )


def _learning(study: Study) -> Pilots | WarmUp | None:
    """Return how a run learns: from the rounds given, else from pilots, else as is usual."""
    if study.sampling.warm_up is not None:
        return WarmUp(study.sampling.warm_up)
    if study.pilots is None:
        return None
    return Pilots(study.pilots.thresholds, study.pilots.rounds)


def measured_profile(study: Study, backend: Backend, seeds: Seeds) -> Profile:
    """Return what an oracle knows: G from a whole run of weighted sampling, and c as given.

    That run's time is not counted. c is the study's, or S_0 where it gives none.
    """
    outcome = train(
        backend,
        Solve(SCHEMES["weighted"], study.training.k),
        schedule=parsed_schedule(study.training.schedule),
        stop=stopping(study),
        seeds=seeds,
    )
    learned = nothing_learned(backend.weights.size)
    for row in outcome.history.rows:
        learned = learn(learned, row)
    known = Known(backend.weights, backend.usual_times)
    return profile_of(learned, known, c_over_s0=study.sampling.c_over_s0)


def stopping(study: Study) -> Stop:
    """Return when a run ends, in seconds as measured."""
    stop = Stop(**study.stop.model_dump())
    if stop.seconds is None or study.network is None:
        return stop
    return replace(stop, seconds=study.network.time_scale * stop.seconds)


def check_at_hand(study: Study) -> None:
    """Say what a study's runs would miss here: the files of its images, a trace, or PyTorch."""
    if isinstance(study.data, ImagesSection):
        pool_files(study.data.kind)
    if study.devices.times.endswith("trace:fedscale:all"):
        whole_file()
    if study.devices.times.endswith(FLASH):
        data_file(LINKS)
    check_availability(study.devices.availability, client_count(study))
    if study.model.kind == "lenet5" and find_spec("torch") is None:
        remedy = "install it with: pip install 'fedpace[torch]'"
        raise MissingExtraError(f"lenet5 needs PyTorch; {remedy}")


def simulator(study: Study, seed: int) -> Simulator:
    """Build the backend of a run: all schemes of a seed share data, initial model and times."""
    seeds = Seeds(seed)
    data = split(study, seed)
    usual = drawn_times(study, study.devices.times, seeds, train=data.train)
    local = study.training.model_dump(include=LOCAL)
    times, known = round_times(study, usual, seeds), study.devices.known
    return Simulator(
        data,
        model(study, data),
        times,
        seeds,
        times_known=known,
        privacy=None if study.privacy is None else study.privacy.made,
        **local,
    )


def drawn_times(
    study: Study, spec: str, seeds: Seeds, *, train: Shards | None = None
) -> FloatArray:
    """Draw the clients' usual times; orders by what clients hold need their data, `train`."""
    work = study.devices.model_dump(include={"samples", "megabits", "correlation"})
    rng = seeds.stream("times")
    if spec.startswith(GIVEN):
        seconds = positive_column("times", found(spec, {}, argument="times", group=GROUP))
        return one_per_client("times", seconds, client_count(study) if train is None else train.n)
    if train is None:
        return usual_times(spec, np.ones(client_count(study), dtype=np.int64), rng, **work)
    labels = train.common_labels if "by-label" in spec else None
    return usual_times(spec, train.sizes, rng, labels=labels, **work)


def split(study: Study, seed: int) -> Split:
    """Draw the data: the study's one draw, or this run's own."""
    section = study.data
    if isinstance(section, OwnSection):
        if section.source is not None:
            return own_split(section, seed)
        problem = "its data are with its clients, and cannot be drawn here"
        raise InputError(f"{study.name}: {problem}; set data.source, or data.kind to {KINDS}")
    chosen = seed if section.seed is None else section.seed
    return _drawn_split(section, chosen, os.environ.get(VARIABLE))


@lru_cache(maxsize=1)
def _drawn_split(
    section: SyntheticSection | ImagesSection,
    seed: int,
    folder: str | None,  # noqa: ARG001 - other files, another draw
) -> Split:
    """Draw the data by their own seed; the latest are kept, as many runs share one draw."""
    rng = Seeds(seed).stream("data")
    if isinstance(section, SyntheticSection) and section.sizes == "paper":
        sizes = np.array(PAPER_SIZES)
    else:
        law = section.model_dump(include={"exponent", "smallest"})
        sizes = power_law_sizes(section.clients, section.samples, rng, **law)
    if isinstance(section, SyntheticSection):
        shape = section.model_dump(include={"alpha", "beta", "features", "classes", "test_share"})
        return synthetic(sizes, rng, **shape)
    pool = load_pool(section.kind, official=section.official)
    return image_split(
        standardised(pool) if section.pixels == "standard" else pool,
        sizes,
        rng,
        fewest=section.fewest_classes,
        most=section.most_classes,
        test_share=section.test_share,
    )


def model(study: Study, data: Split) -> Model:
    """Return what clients train on these data."""
    if study.model.kind == "own":
        return own_model(study.model, data)
    if isinstance(study.data, OwnSection):
        return _logistic(study, data.train.x.shape[1], data.train.classes)
    return _model(study, data.train.x.shape[1])


def _model(study: Study, features: int) -> Model:
    section = study.data
    classes = section.classes if isinstance(section, SyntheticSection) else CLASSES[section.kind]
    if study.model.kind == "logistic":
        return _logistic(study, features, classes)
    if study.model.kind == "small-cnn":
        return SmallCnn(classes)
    from fedpace.models.lenet import lenet5
    from fedpace.models.torch_model import TorchModel

    # One thread: runs share the cores between them, and the numbers do not depend on how many.
    return TorchModel(partial(lenet5, classes), input_shape=(1, 28, 28), threads=1)


def _logistic(study: Study, features: int, classes: int) -> Logistic:
    dtype = np.float32 if study.model.precision == "single" else np.float64
    return Logistic(features, classes, dtype)


def client_count(study: Study) -> int:
    """Return how many clients a study has."""
    section = study.data
    if isinstance(section, SyntheticSection) and section.sizes == "paper":
        return len(PAPER_SIZES)
    if section.clients is None:
        return split(study, 0).train.n
    return section.clients


def model_of(study: Study) -> Model:
    """Return what clients train, from the shape of their data alone."""
    section = study.data
    if isinstance(section, OwnSection) or study.model.kind == "own":
        problem = "data.kind and model.kind must be known to devices, got own"
        raise InputError(f"{study.name}: {problem}; set it to {KINDS}")
    return _model(study, section.features if isinstance(section, SyntheticSection) else PIXELS)


def round_times(study: Study, usual: FloatArray, seeds: Seeds) -> RoundTimes:
    """Return steady times, or varying ones, of clients that are there when the study says so."""
    devices = study.devices
    varying = devices.noise or devices.drift or devices.busy
    variation = devices.model_dump(include=VARIATION)
    times: RoundTimes = Varying(usual, seeds, **variation) if varying else Steady(usual)
    if devices.times.endswith(FLASH):
        work = devices.model_dump(include={"samples", "megabits"})
        times = linked(times, seeds.stream("times"), seeds, **work)
    if devices.slower is not None:
        times = slower(devices.slower, times, seeds)
    return with_availability(devices.availability, times, seeds)


def parsed_schedule(text: str) -> schedules.Schedule:
    """Return the schedule of a text such as "inverse:0.1".

    >>> parsed_schedule("bound:0.5:50")(0)
    0.08
    """
    name, *parameters = text.split(":")
    try:
        values = [float(each) for each in parameters]
        if not all(0 < value < np.inf for value in values):
            raise ValueError
        return SCHEDULES[name](*values)
    except (KeyError, TypeError, ValueError):  # an unknown name, or another number of values
        known = "inverse:RATE, constant:RATE or bound:MU:GAMMA"
        raise InputError(f"schedule must be {known}, got '{text}'; write inverse:0.1") from None
