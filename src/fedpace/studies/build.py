"""Build the parts of a run from a study: data, model, times, sampler, server; and run it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from fedpace.backends.simulator import Simulator
from fedpace.checks import FloatArray, one_per_client, positive_column
from fedpace.data.datasets import VARIABLE
from fedpace.data.images import CLASSES, image_split, load_pool, pool_files, standardise
from fedpace.data.natural import (
    CIFAR10_CLASSES,
    cifar10_file,
    cifar10_split,
    load_cifar10,
    load_speeches,
    shakespeare_file,
    speech_split,
)
from fedpace.data.partition import PAPER_SIZES, check_test_share, power_law_sizes, synthetic
from fedpace.data.shards import Shards, Split
from fedpace.errors import InputError, MissingExtraError
from fedpace.lookup import GIVEN, find
from fedpace.models.model import BaseModel, as_model
from fedpace.models.networks import Gru, Logistic, SmallCnn
from fedpace.profile import Profile
from fedpace.registry import METHODS
from fedpace.samplers.build import Pilots, WarmUp, check_mode, sampler_for
from fedpace.samplers.client_stats import empty_client_stats, learn, profile_of
from fedpace.samplers.pilots import Piloted
from fedpace.samplers.solve import Solve
from fedpace.sampling.schemes import SCHEMES, needs_counts_only
from fedpace.seeds import Seeds
from fedpace.servers.build import keep_buffers, server_for
from fedpace.studies.study import (
    Cifar10Section,
    ImagesSection,
    ModelSection,
    OwnSection,
    ShakespeareSection,
    Study,
    SyntheticSection,
)
from fedpace.times.availability import check_availability, with_availability
from fedpace.times.distributions import FLASH, DeviceTimes, device_times
from fedpace.times.links import FLASH_USERS, SharedLink, data_file, whole_file, with_links
from fedpace.times.round_times import BaseTimes, Steady, Varying
from fedpace.training.backend import BaseBackend
from fedpace.training.sampler import BaseSampler, SamplerContext
from fedpace.training.stopping import Schedule, Stop, constant, inverse, theoretical
from fedpace.training.train import train
from fedpace.training.training import Outcome

# Pixels of an image of MNIST or EMNIST.
PIXELS, CIFAR10_PIXELS = 28 * 28, 32 * 32 * 3
# Kinds of data that come with fedpace.
KINDS = "synthetic, mnist, emnist-lower, cifar10 or shakespeare"
# Fields of the training section for clients.
LOCAL = {"batch", "weight_decay", "clip", "optimiser", "proximal"}
# Fields of the devices section for varying times.
VARIATION = {"noise", "drift", "period", "busy", "busy_factor", "spell"}
SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "inverse": inverse,
    "constant": constant,
    "bound": theoretical,
}


def run_one(study: Study, scheme: str, seed: int, *, callbacks: Sequence[Any] = ()) -> Outcome:
    """Run one scheme with one seed; the numbers depend on the arguments only."""
    return run_with(simulator(study, seed), study, scheme, seed, callbacks=callbacks)


def run_with(
    backend: BaseBackend, study: Study, scheme: str, seed: int, *, callbacks: Sequence[Any] = ()
) -> Outcome:
    """Run one scheme with one seed on the given backend."""
    drawn_by = sampler(study, scheme, backend, Seeds(seed))
    return train(
        backend,
        drawn_by,
        server=keep_buffers(server_for(study.training.server, drawn_by), backend),
        schedule=parsed_schedule(study.training.schedule),
        stop=stop_rule(study),
        seeds=Seeds(seed),
        evaluate_every=1 if study.network is None else study.network.evaluate_every,
        callbacks=callbacks,
        name=scheme,
        **_mode_settings(study, scheme),
    )


def _mode_settings(study: Study, scheme: str) -> dict[str, Any]:
    """Return the mode-specific arguments of `train`."""
    training = study.training
    if not training.asynchronous:
        return {"take": training.take, "deadline": training.deadline}
    own = study.sampling.knobs.get(scheme, {}).get("buffer", training.buffer)
    fixed = METHODS[scheme].buffer if scheme in METHODS else None
    buffer = own if fixed is None else fixed
    return {"mode": training.mode, "at_once": training.slots, "buffer": buffer}


def check_schemes(study: Study, schemes: Sequence[str]) -> None:
    """Refuse schemes that do not fit the study's mode, and more concurrent clients than exist."""
    training, count = study.training, client_count(study)
    if training.asynchronous and training.slots > count:
        field = "k" if training.at_once is None else "at_once"
        got = f"{training.slots} for {count} clients; set training.{field}={max(count // 2, 1)}"
        limit = f"training.{field} must be at most the number of clients in asynchronous training"
        raise InputError(f"{limit}, got {got}")
    if training.local_steps == "auto" and not (training.asynchronous and "pace" in schemes):
        got = f"auto for {', '.join(schemes)} in mode {training.mode}"
        raise InputError(
            f"training.local_steps must be a number, or auto for asynchronous pace, got {got}"
            "; give a number, or add pace and training.mode=asynchronous"
        )
    for scheme in schemes:
        check_mode(scheme, training.mode)
        if training.k_max is None:
            continue
        if scheme != "pace" or training.mode != "synchronous":
            got = f"auto for {scheme} in mode {training.mode}"
            raise InputError(
                f"training.k must be a number except for pace in rounds, got {got}; set it"
            )
        if training.k_max > count:
            got = f"{training.k_max} for {count} clients; set training.k_max={count}"
            raise InputError(f"training.k_max must be at most the number of clients, got {got}")


def sampler(study: Study, scheme: str, backend: BaseBackend, seeds: Seeds) -> BaseSampler:
    """Return the sampler of a run."""
    if study.training.asynchronous:
        return _asynchronous_sampler(study, scheme, backend)
    section, k = study.sampling, study.training.k
    settings = section.model_dump(include={"refresh", "max_weight", "c_over_s0"})
    if scheme == "pace":  # it has its own cap
        del settings["max_weight"]
    # A scheme for both modes may have a buffer, which rounds do not use.
    knobs = {name: x for name, x in section.knobs.get(scheme, {}).items() if name != "buffer"}
    if study.training.k_max is not None:
        knobs["k_max"] = study.training.k_max
    made = sampler_for(
        scheme, k, learn=_learn_rule(study), knobs=knobs, mode=study.training.mode, **settings
    )
    if not section.oracle or not isinstance(made, (Solve, Piloted)):
        return made
    if needs_counts_only(made.scheme):
        return made
    if backend.usual_times is None:
        problem = "sampling.oracle must be false unless times are known"
        raise InputError(f"{problem}; set sampling.oracle=false")
    profile = measured_profile(study, backend, seeds)
    return Solve(made.scheme, k, max_weight=section.max_weight, profile=profile)


def _asynchronous_sampler(study: Study, scheme: str, backend: BaseBackend) -> BaseSampler:
    """Return the sampler of an asynchronous run."""
    if study.sampling.oracle:
        remedy = "set sampling.oracle=false, or training.mode=synchronous"
        raise InputError(f"sampling.oracle needs rounds, got mode asynchronous; {remedy}")
    settings = study.sampling.model_dump(include={"refresh", "max_weight", "c_over_s0"})
    warm_up = study.sampling.warm_up
    auto = scheme == "pace" and study.training.local_steps == "auto"
    chosen = {"local_steps": "auto"} if auto else {}
    return sampler_for(
        scheme,
        study.training.slots,
        mode=study.training.mode,
        learn=None if warm_up is None else WarmUp(warm_up),
        buffer=study.training.buffer,
        times_known=backend.usual_times is not None,
        knobs=chosen | study.sampling.knobs.get(scheme, {}),
        **settings,
    )


def _learn_rule(study: Study) -> Pilots | WarmUp | None:
    """Return how a run learns: from a warm-up, from pilots, or by default."""
    if study.sampling.warm_up is not None:
        return WarmUp(study.sampling.warm_up)
    if study.pilots is None:
        return None
    return Pilots(study.pilots.thresholds, study.pilots.rounds)


def measured_profile(study: Study, backend: BaseBackend, seeds: Seeds) -> Profile:
    """Return the profile for an oracle: G from a complete run of weighted sampling, c as given.

    That run's time is not counted. c is the study's, or S_0 by default.
    """
    outcome = train(
        backend,
        Solve(SCHEMES["weighted"], study.training.k),
        schedule=parsed_schedule(study.training.schedule),
        stop=stop_rule(study),
        seeds=seeds,
    )
    learned = empty_client_stats(backend.weights.size)
    for row in outcome.history.rows:
        learned = learn(learned, row)
    known = SamplerContext(backend.weights, backend.usual_times)
    return profile_of(learned, known, c_over_s0=study.sampling.c_over_s0)


def stop_rule(study: Study) -> Stop:
    """Return the stopping rule of a run, in seconds as measured."""
    stop = Stop(**study.stop.model_dump())
    if stop.seconds is None or study.network is None:
        return stop
    return replace(stop, seconds=study.network.time_scale * stop.seconds)


def check_at_hand(study: Study) -> None:
    """Refuse a study whose images, trace or packages are missing on this machine."""
    if isinstance(study.data, ImagesSection):
        pool_files(study.data.kind)
    if isinstance(study.data, Cifar10Section):
        cifar10_file()
    if isinstance(study.data, ShakespeareSection):
        shakespeare_file()
    if study.devices.times.endswith("trace:fedscale:all"):
        whole_file()
    if study.devices.times.endswith(FLASH):
        data_file(FLASH_USERS)
    check_availability(study.devices.availability, client_count(study))
    if study.model.kind == "lenet5" and find_spec("torch") is None:
        remedy = "install it with: pip install 'fedpace[torch]'"
        raise MissingExtraError(f"lenet5 needs PyTorch; {remedy}")


def simulator(study: Study, seed: int) -> Simulator:
    """Build the backend of a run: all schemes of a seed share data, initial model and times."""
    seeds = Seeds(seed)
    data = split(study, seed)
    drawn = drawn_devices(study, study.devices.times, seeds, train=data.train)
    local = study.training.model_dump(include=LOCAL)
    times, known = round_times(study, drawn, seeds), study.devices.known
    return Simulator(
        data,
        model(study, data),
        times,
        seeds,
        times_known=known,
        privacy=None if study.privacy is None else study.privacy.made,
        local_steps=study.local_steps,
        reference_steps=study.reference_steps,
        link=SharedLink.parse(study.devices.link) if study.devices.link else None,
        megabits=study.devices.megabits,
        sharing=study.training.slots,
        **local,
    )


def drawn_times(
    study: Study, spec: str, seeds: Seeds, *, train: Shards | None = None
) -> FloatArray:
    """Draw the clients' usual times; those that depend on their data need `train`."""
    return drawn_devices(study, spec, seeds, train=train).seconds


def drawn_devices(
    study: Study, spec: str, seeds: Seeds, *, train: Shards | None = None
) -> DeviceTimes:
    """Draw the clients' usual times, and the share of them that is computing."""
    share = study.devices.compute
    work = study.devices.model_dump(include={"samples", "megabits", "correlation"})
    work["computing"] = share
    rng = seeds.stream("times")
    if spec.startswith(GIVEN):
        seconds = positive_column("times", find(spec, {}, argument="times", group=GROUP))
        n = client_count(study) if train is None else train.n
        return DeviceTimes(one_per_client("times", seconds, n), np.full(n, share))
    if train is None:
        return device_times(spec, np.ones(client_count(study), dtype=np.int64), rng, **work)
    labels = train.common_labels if "by-label" in spec else None
    return device_times(spec, train.sizes, rng, labels=labels, **work)


def split(study: Study, seed: int) -> Split:
    """Return the data: one draw for the study, or one for each seed."""
    section = study.data
    if isinstance(section, OwnSection):
        if section.source is not None:
            return own_split(section, seed)
        problem = "its data are held by its clients"
        raise InputError(f"{study.name}: {problem}; set data.source, or data.kind to {KINDS}")
    chosen = seed if section.seed is None else section.seed
    return _drawn_split(section, chosen, os.environ.get(VARIABLE))


@lru_cache(maxsize=1)
def _drawn_split(
    section: SyntheticSection | ImagesSection | Cifar10Section | ShakespeareSection,
    seed: int,
    folder: str | None,  # noqa: ARG001 - other files, another draw
) -> Split:
    """Draw the data by their own seed; the latest draw is cached, as many runs share it."""
    rng = Seeds(seed).stream("data")
    if isinstance(section, ShakespeareSection):
        cut = section.model_dump(include={"length", "most", "test_share"})
        return speech_split(load_speeches(section.fewest), **cut)
    if isinstance(section, Cifar10Section):
        parts = {"concentration": section.concentration}
        return cifar10_split(load_cifar10(), section.clients, rng, **parts)
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
        standardise(pool) if section.pixels == "standard" else pool,
        sizes,
        rng,
        fewest=section.fewest_classes,
        most=section.most_classes,
        test_share=section.test_share,
    )


def model(study: Study, data: Split) -> BaseModel:
    """Return the model for these data."""
    if study.model.kind == "own":
        return own_model(study.model, data)
    if isinstance(study.data, OwnSection):
        return _logistic(study, data.train.x.shape[1], data.train.classes)
    return _model(study, data.train.x.shape[1])


def _model(study: Study, features: int) -> BaseModel:
    section, kind = study.data, study.model.kind
    assert not isinstance(section, OwnSection)
    if isinstance(section, ShakespeareSection):
        return Gru(len(load_speeches(section.fewest).characters), study.model.units)
    if isinstance(section, Cifar10Section):
        classes, side, colours = len(CIFAR10_CLASSES), 32, 3
    elif isinstance(section, SyntheticSection):
        classes, side, colours = section.classes, 28, 1
    else:
        classes, side, colours = CLASSES[section.kind], 28, 1
    if kind == "logistic":
        return _logistic(study, features, classes)
    if kind == "small-cnn":
        return SmallCnn(classes, study.model.channels, side=side, colours=colours)
    from fedpace.models.torch_model import TorchModel, lenet5

    # One thread: runs share the cores between them, and the numbers do not depend on how many.
    return TorchModel(
        partial(lenet5, classes), input_shape=(1, 28, 28), threads=1, device=study.model.device
    )


def _logistic(study: Study, features: int, classes: int) -> Logistic:
    dtype = np.float32 if study.model.precision == "single" else np.float64
    return Logistic(features, classes, dtype)


def client_count(study: Study) -> int:
    """Return the number of clients of a study."""
    section = study.data
    if isinstance(section, SyntheticSection) and section.sizes == "paper":
        return len(PAPER_SIZES)
    if section.clients is None:
        return split(study, 0).train.n
    return section.clients


def model_of(study: Study) -> BaseModel:
    """Return the model, from the shape of the data only; with own data, from the data."""
    section = study.data
    if isinstance(section, OwnSection) or study.model.kind == "own":
        return model(study, split(study, 0))
    if isinstance(section, Cifar10Section):
        return _model(study, CIFAR10_PIXELS)
    return _model(study, section.features if isinstance(section, SyntheticSection) else PIXELS)


def round_times(study: Study, drawn: DeviceTimes, seeds: Seeds) -> BaseTimes:
    """Return the times of clients, steady or varying, and their availability."""
    devices = study.devices
    varying = devices.noise or devices.drift or devices.busy
    variation = devices.model_dump(include=VARIATION)
    usual, share = drawn
    times: BaseTimes = Steady(usual, share)
    if varying:
        times = Varying(usual, seeds, computing=share, **variation)
    if devices.times.endswith(FLASH):
        work = devices.model_dump(include={"samples", "megabits"})
        times = with_links(times, seeds.stream("times"), seeds, **work)
    return with_availability(devices.availability, times, seeds)


def parsed_schedule(text: str) -> Schedule:
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


# Entry points of other packages.
GROUP = "fedpace.own"


def own_split(section: OwnSection, seed: int) -> Split:
    """Return the data that the section's source is or makes."""
    given = find(section.source, {}, argument="data", group=GROUP)
    if isinstance(given, Split):
        return given
    rng = Seeds(seed if section.seed is None else section.seed).stream("data")
    if callable(given):
        given = given(rng) if inspect.signature(given).parameters else given()
    return given if isinstance(given, Split) else split_of(given, test_share=section.test_share)


def own_model(section: ModelSection, data: Split) -> BaseModel:
    """Return the model that the section's source is or makes."""
    given = find(section.source, {}, argument="model", group=GROUP)
    named = {"loss": section.loss, "metric": section.metric}
    for name, value in named.items():
        if value is not None and ":" in value:
            named[name] = find(value, {}, argument=name, group=GROUP)
    return model_for(given, data.train, **named, device=section.device)


def model_for(
    given: Any, train: Shards, *, loss: Any = None, metric: Any = None, device: str | None = None
) -> BaseModel:
    """Return a user's model as a Model that fits the data."""
    classes = train.classes if train.y.dtype.kind == "i" and train.y.ndim == 1 else None
    named = {"loss": loss, "metric": metric, "device": device}
    return as_model(given, shape=train.x.shape[1:], classes=classes, **named)


def split_of(clients: Iterable[Any], *, test_share: float = 0.1) -> Split:
    """Join clients' arrays: (x, y), of which the last rows are held back, or four arrays.

    >>> split_of([(np.ones((10, 2)), np.zeros(10, int))]).train.sizes
    array([9])
    """
    check_test_share(test_share)
    if isinstance(clients, str) or not isinstance(clients, Iterable):
        got = f"{clients!r:.60}; give a list of pairs (x, y)"
        raise InputError(f"clients must be one pair of arrays per client, got {got}")
    parts = [_parts(i, each, test_share) for i, each in enumerate(clients)]
    if not parts:
        raise InputError("clients must be one pair of arrays per client, got none; give some")
    shapes = [tuple(each.shape[1:] for each in part[:2]) for part in parts]
    for client, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise InputError(
                f"clients must have samples of one shape, got {shapes[0]} for client 0 and {shape} "
                f"for client {client}; pad or crop them"
            )
    x, y, test_x, test_y = zip(*parts, strict=True)
    return Split(Shards.from_clients(x, y), Shards.from_clients(test_x, test_y))


def _parts(client: int, given: Any, test_share: float) -> Sequence[Any]:
    """Return the four arrays of a client."""
    if not isinstance(given, Sequence) or len(given) not in (2, 4):
        raise InputError(
            f"clients must be pairs (x, y), got {type(given).__name__} for client {client}; "
            "or (x, y, test x, test y)"
        )
    arrays = [np.asarray(each) for each in given]
    for name, array in zip(("x", "y", "test x", "test y"), arrays, strict=False):
        if array.dtype.kind not in "fiub":
            got = f"{array.dtype} for client {client}; convert it"
            raise InputError(f"{name} must be numbers, got {got}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            got = f"NaN or infinity for client {client}; fill or drop it"
            raise InputError(f"{name} must be finite, got {got}")
    for x, y in (arrays[:2], arrays[2:]) if len(arrays) == 4 else (arrays,):
        if x.ndim < 2 or len(x) != len(y):
            raise InputError(
                f"x and y must have one row per sample, got shapes {x.shape} and {y.shape} for "
                f"client {client}; give x as (samples, features)"
            )
    x, y = arrays[:2]
    if len(arrays) == 2:
        # A single sample is trained on, not held back.
        kept = max(len(y) - max(round(test_share * len(y)), 1), 1)
        arrays = [x[:kept], y[:kept], x[kept:], y[kept:]]
    if not len(arrays[0]):
        raise InputError(f"clients must hold a sample, got none for client {client}; drop it")
    return arrays
