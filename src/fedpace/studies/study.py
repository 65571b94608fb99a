"""A study: data, model, devices, stopping rule, and what the paper reports for it."""

import tomllib
from collections.abc import Iterable
from importlib import resources
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from fedpace.backends.privacy import DELTA, Privacy
from fedpace.errors import InputError, nearest
from fedpace.times.availability import ALWAYS
from fedpace.times.links import MEGABITS, OPTIMAL, SAMPLES, SharedLink
from fedpace.times.round_times import COMPUTING

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AtLeastZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, lt=1)]

# Sections that may be a user's own, given by a name alone.
OWN = ("data", "model")
OWN_DATA = 'write a .toml with data = "file.py:make_clients" (docs/own-models.md)'
# Bounds in the words of Pydantic.
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
# The kinds of data that models take; others take any data with classes.
TAKES = {
    "lenet5": ("mnist", "emnist-lower"),
    "small-cnn": ("mnist", "emnist-lower", "cifar10"),
    "gru": ("shakespeare",),
}
# E by default.
LOCAL_STEPS = 50
# Losses of PyTorch models whose labels are numbers.
OF_NUMBERS = ("mse", "mae", "huber")
SETUPS = resources.files("fedpace.studies") / "setups"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SyntheticSection(_Section):
    """Synthetic(α, β) data.

    `seed` fixes one draw of the data for all runs; without it every run draws its own. `clients`,
    `samples`, `exponent` and `smallest` are for the sizes "power-law".
    """

    kind: Literal["synthetic"]
    alpha: AtLeastZero = 1.0
    beta: AtLeastZero = 1.0
    features: Count = 60
    classes: Annotated[int, Field(ge=2)] = 10
    sizes: Literal["paper", "power-law"] = "paper"
    clients: Count = 100
    samples: Count = 20509
    exponent: Positive = 1.5
    smallest: Count = 46
    test_share: Share = 0.1
    seed: Seed | None = None


class ImagesSection(_Section):
    """Images, a few classes per client; `samples` of them for training.

    `pixels` are in [0, 1] ("unit"), or shifted and scaled to mean 0 and variance 1 over all images
    ("standard"). With `official` false, MNIST's files may be replaced by others.
    """

    kind: Literal["mnist", "emnist-lower"]
    official: bool = True
    pixels: Literal["unit", "standard"] = "unit"
    clients: Count
    samples: Count
    exponent: Positive = 1.5
    smallest: Count = 10
    fewest_classes: Count = 1
    most_classes: Count = 10
    test_share: Share = 0.1
    seed: Seed | None = None


class Cifar10Section(_Section):
    """CIFAR-10 for `clients` of equal size, their classes from Dir(`concentration`)."""

    kind: Literal["cifar10"]
    clients: Count = 100
    concentration: Positive = 0.3
    seed: Seed | None = None


class ShakespeareSection(_Section):
    """Sequences of `length` characters, a client for each speaker with at least `fewest` in all.

    A speaker has at most the first `most` characters. Nothing is drawn: `seed` has no effect.
    """

    kind: Literal["shakespeare"]
    fewest: Count = 1000
    most: Count | None = None
    length: Count = 40
    test_share: Share = 0.1
    seed: Seed | None = 0

    @property
    def clients(self) -> None:
        """Unknown before the file is read."""
        return None


class OwnSection(_Section):
    """Your own data, from `source` or held by remote clients.

    `source` is file.py:name or module:name, a function that returns one pair (x, y) per client, of
    which the share `test_share` is held back, or (x, y, test x, test y). A function of one
    argument gets a random generator, so that every run, or every `seed`, has its own data.
    Without `source` only the number of `clients` is known.
    """

    kind: Literal["own"] = "own"
    source: str | None = None
    clients: Count | None = None
    test_share: Share = 0.1
    seed: Seed | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.source is None and self.clients is None:
            raise ValueError('own data must have a source; write data = "file.py:make_clients"')
        return self


DataSection = Annotated[
    SyntheticSection | ImagesSection | Cifar10Section | ShakespeareSection | OwnSection,
    Field(discriminator="kind"),
]


class ModelSection(_Section):
    """The model and its precision; lenet5, small-cnn and gru train in single precision.

    lenet5 takes images of 28 × 28, small-cnn also those of CIFAR-10, and gru characters. `channels`
    are the filters of small-cnn, `units` the state of gru.

    An own model has a `source`, file.py:name or module:name: a PyTorch module, a linear model of
    scikit-learn, a `BaseModel`, or a function that makes one; `loss` and `metric` are for PyTorch.
    `device` is where PyTorch trains, lenet5 too: cuda, cuda:1, mps, cpu, or auto for the best.
    """

    kind: Literal["logistic", "lenet5", "small-cnn", "gru", "own"] = "logistic"
    channels: Count = 8
    units: Count = 32
    precision: Literal["single", "double"] = "single"
    source: str | None = None
    loss: str | None = None
    metric: str | None = None
    device: str | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.kind == "own") != (self.source is not None):
            raise ValueError('an own model must have a source; write model = "file.py:make_model"')
        if self.kind != "own" and (self.loss or self.metric):
            raise ValueError(f"{self.kind} has its own loss and metric; leave them out")
        if self.device and self.kind not in ("own", "lenet5"):
            raise ValueError(f"{self.kind} trains with NumPy on the CPU; leave the device out")
        return self


# K of the warm-up, where K is chosen: in trials, a warm-up of 10 cost a tenth of the run.
FIRST_K = 4


class DevicesSection(_Section):
    """The speed of clients: see fedpace.times.

    `samples` and `megabits` are what a device of times = "trace:fedscale" computes on and transfers
    per round; other times do not depend on them. Unless times are `known`, the server learns them
    as it trains. `period` and `spell` are in seconds.

    Times are those of `reference_steps` local steps, by default of as many as clients take. With
    another number, the part of a time that is computing grows in proportion: as a trace has it, or
    the share `compute` of other times.

    With the `link` shared:CAPACITY (Mbit/s), all clients in transfer share the server's link: a
    client computes for its part of the time, then transfers its `megabits`, no faster than its own
    link would in the rest of the time. shared:CAPACITY:optimal lets a round's clients end together.

    `correlation` assigns the same times by sample counts: 1 the longest to the largest clients,
    −1 the shortest, 0 in random order. `availability` is always, markov:ON:OFF, daily:SHARE:PERIOD
    file:PATH or file.py:name: see fedpace.times.availability.
    """

    times: str = "exponential:1"
    samples: Positive = SAMPLES
    megabits: Positive = MEGABITS
    compute: Annotated[float, Field(ge=0, le=1)] = COMPUTING
    reference_steps: Count | None = None
    link: str | None = None
    known: bool = True
    correlation: Annotated[float, Field(ge=-1, le=1)] = 0.0
    availability: str = ALWAYS
    noise: AtLeastZero = 0.0
    drift: AtLeastZero = 0.0
    period: Positive = 100.0
    busy: Annotated[float, Field(ge=0, lt=1)] = 0.0
    busy_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 10.0
    spell: Positive = 10.0

    @field_validator("link")
    @classmethod
    def _check_link(cls, link: str | None) -> str | None:
        if link is not None:
            SharedLink.parse(link)
        return link


class TrainingSection(_Section):
    """How clients and server train.

    A round ends after `take` replies or `deadline` seconds; late replies are discarded, and the
    weights of clients that are often late are corrected for it. `schedule` is inverse:RATE,
    constant:RATE or bound:MU:GAMMA. `server` is average, mean, memory, fedvarp, fedstale:BETA,
    adam:RATE, yogi:RATE, clip:FACTOR, in rounds also trimmed:SHARE and krum:COUNT, or
    file.py:name; auto is the scheme's own, such as memory for `pace`, and otherwise the average.

    In the `mode` "asynchronous", `at_once` clients train at the same time, by default `k`, and the
    server steps after every `buffer` updates, by default the scheme's own number, else `at_once`.
    Rounds are then steps, and schemes with pilots warm up instead. In the mode "auto" `pace` begins
    with rounds and continues asynchronously if it predicts that this is sooner; a round then counts
    as `k` updates. Other schemes stay synchronous.

    With `k` = "auto", `pace` chooses K at every solution, up to `k_max`; its warm-up has K = 4, or
    `k_max` if that is less. Setting `k_max` has the same effect.

    Clients take `local_steps` steps. With "auto", in the mode "asynchronous", `pace` chooses them,
    and the clients of other schemes take `reference_steps` of the devices. Their `optimiser` is
    sgd, momentum:BETA or adam, and `proximal` is μ of FedProx.
    """

    k: Count = 10
    k_max: Count | None = None
    take: Count | None = None
    deadline: Positive | None = None
    local_steps: Count | Literal["auto"] = LOCAL_STEPS
    batch: Count = 24
    schedule: str = "inverse:0.1"
    weight_decay: AtLeastZero = 0.0
    clip: Positive | None = None
    optimiser: str = "sgd"
    proximal: AtLeastZero = 0.0
    server: str = "auto"
    mode: Literal["synchronous", "asynchronous", "auto"] = "synchronous"
    at_once: Count | None = None
    buffer: Count | None = None

    @property
    def asynchronous(self) -> bool:
        """Whether training is asynchronous."""
        return self.mode == "asynchronous"

    @property
    def slots(self) -> int:
        """The number of clients that train at the same time."""
        return self.k if self.at_once is None else self.at_once

    @model_validator(mode="before")
    @classmethod
    def _read_auto(cls, values: Any) -> Any:
        """Read k = "auto" as the K of the warm-up, with `k_max`."""
        if not isinstance(values, dict) or values.get("k") != "auto":
            return values
        most = values.get("k_max")
        if most is None:
            raise ValueError("k = auto needs a limit; set training.k_max=16")
        return values | {"k": min(FIRST_K, most) if isinstance(most, int) else most}

    @field_validator("schedule", mode="before")
    @classmethod
    def _check_schedule(cls, schedule: object) -> object:
        if isinstance(schedule, int | float):
            raise ValueError(f"a rate needs a schedule; write constant:{schedule:g}")
        return schedule

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if not self.asynchronous and (self.at_once is not None or self.buffer is not None):
            remedy = "set training.mode=asynchronous, or leave them out"
            raise ValueError(f"at_once and buffer are for asynchronous training; {remedy}")
        return self


class SamplingSection(_Section):
    """Settings of the optimising schemes.

    `c_over_s0` sets c = β/α in units of S_0 = (Σ p_i G_i)²; without it c is estimated. `warm_up` is
    a number of rounds of weighted sampling that replace the two pilots. The probabilities are
    solved again every `refresh` rounds. `oracle` uses the gradient norms of an earlier run instead
    of pilots. `pace` has its own cap, no pilots, and solves again every ten rounds by default.
    `knobs` are settings of samplers by name: sampling.knobs.pow-d.d=30.
    """

    max_weight: Positive | None = None
    c_over_s0: AtLeastZero | None = None
    warm_up: Count | None = None
    refresh: Count | None = None
    oracle: bool = False
    knobs: dict[str, dict[str, Any]] = {}


class PilotsSection(_Section):
    """The ends of the two pilots of Algorithm 2; without this section there is a warm-up."""

    thresholds: Annotated[tuple[Finite, ...], Field(min_length=1)]
    rounds: Count

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if any(a <= b for a, b in pairwise(self.thresholds)):
            raise ValueError("thresholds must fall, as the loss does; give the highest first")
        return self


class StopSection(_Section):
    """When a run ends: the first of these that is reached.

    With `sustained`, a run continues after it first reaches the target loss, until the mean of its
    last ten evaluated losses does; the report gives both times.
    """

    loss: Finite | None = None
    sustained: bool = False
    accuracy: Finite | None = None
    rounds: Count | None = None
    seconds: Positive | None = None

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.rounds is None and self.seconds is None:
            raise ValueError("a run must end even if it never reaches its target; give seconds")
        return self


class PrivacySection(_Section):
    """Differential privacy of clients: see fedpace.backends.privacy.

    Updates are clipped to the length `clip`, and Gaussian noise of standard deviation `noise` times
    `clip` is added to each number. The report gives ε at this `delta`.
    """

    clip: Positive
    noise: AtLeastZero
    delta: Annotated[float, Field(gt=0, lt=1)] = DELTA

    @property
    def made(self) -> Privacy:
        """The mechanism of a client."""
        return Privacy(self.clip, self.noise)


class NetworkSection(_Section):
    """How a run on real devices was measured; a simulated run has no such section.

    `time_scale` shrinks all times: 1 second measured stands for 1/time_scale. `deadline` is per
    round, in seconds as measured; by default it is learned. The global loss is evaluated every
    `evaluate_every` rounds, 0 for never.
    """

    how: Literal["namespaces", "paced", "devices", "flower"]
    time_scale: Positive = 1.0
    deadline: Positive | None = None
    evaluate_every: Annotated[int, Field(ge=0)] = 1


class Study(_Section):
    """A validated setup.

    `paper` holds the paper's seconds to its target, by scheme; `paper_loss` is that target if
    `stop.loss` is another.
    """

    name: str
    title: str = ""
    data: DataSection
    model: ModelSection = ModelSection()
    devices: DevicesSection = DevicesSection()
    training: TrainingSection = TrainingSection()
    sampling: SamplingSection = SamplingSection()
    pilots: PilotsSection | None = None
    stop: StopSection
    privacy: PrivacySection | None = None
    network: NetworkSection | None = None
    paper: dict[str, float] = {}
    paper_loss: Finite | None = None

    @model_validator(mode="before")
    @classmethod
    def _open_own(cls, values: Any) -> Any:
        """Read data = "file.py:name" and model = "file.py:name" as sections."""
        if not isinstance(values, dict):
            return values
        return values | _own_sections(values)

    @model_validator(mode="after")
    def _check_sections(self) -> Self:
        kind, takes = self.model.kind, TAKES.get(self.model.kind, ())
        if takes and isinstance(self.data, OwnSection) and self.data.source:
            raise ValueError('own data need an own model; write model = "file.py:make_model"')
        if takes and self.data.kind not in (*takes, "own"):
            given = f"{kind} takes {'characters' if kind == 'gru' else 'images'}"
            raise ValueError(f"{given}; set data.kind to {' or '.join(takes)}")
        if self.data.kind == "shakespeare" and kind not in ("gru", "own"):
            raise ValueError(f"{kind} takes no characters; set model.kind to gru")
        if takes and self.model.precision == "double":
            raise ValueError(f"{kind} trains in single precision; set model.precision to single")
        rounds = self.training.take, self.training.deadline
        if self.training.mode != "synchronous" and rounds != (None, None):
            raise ValueError(
                "take and deadline need rounds; set training.mode=synchronous, or set "
                "training.take and training.deadline to none"
            )
        link = self.devices.link
        if link and SharedLink.parse(link).rule == OPTIMAL and self.training.mode != "synchronous":
            raise ValueError(f"link {link} needs rounds; set training.mode=synchronous")
        return self

    @property
    def reference_steps(self) -> int:
        """The local steps that the devices' times are for."""
        given = self.training.local_steps
        return self.devices.reference_steps or (LOCAL_STEPS if given == "auto" else given)

    @property
    def local_steps(self) -> int:
        """E where a task does not say: as given, or the reference if that is "auto"."""
        given = self.training.local_steps
        return self.reference_steps if given == "auto" else given

    @property
    def measures_accuracy(self) -> bool:
        """Whether the metric on held-out samples is a share."""
        named = self.model.metric or ("mae" if self.model.loss in OF_NUMBERS else "accuracy")
        return named in ("accuracy", "label-accuracy")

    @property
    def own_names(self) -> list[str]:
        """The names of the user's own data, model, loss, metric, times and availability."""
        names = (*self.own_code, self.devices.times, self.devices.availability)
        return [name for name in names if ":" in name]

    @property
    def own_code(self) -> list[str]:
        """What clients run of it: data and model, loss and metric, which may be built in."""
        own = self.data.source if isinstance(self.data, OwnSection) else None
        names = (own, self.model.source, self.model.loss, self.model.metric)
        return [name for name in names if name is not None]


SECTIONS: dict[str, type[BaseModel]] = {
    "training": TrainingSection,
    "sampling": SamplingSection,
    "devices": DevicesSection,
    "stop": StopSection,
}


def load_study(name_or_path: str, overrides: Iterable[str] = ()) -> Study:
    """Read a setup of fedpace or a TOML file, and apply overrides `section.field=value`.

    A file may begin with `base = "SETUP"` and give only what differs from that setup. Own files
    that it names, such as model = "file.py:make_model", are searched in its folder.

    >>> load_study("simulation-1", ["training.k=5"]).training.k
    5
    """
    values = _values_of(name_or_path)
    for override in overrides:
        _apply(values, override)
    values.setdefault("name", Path(name_or_path).stem)
    return validate(values, name_or_path)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a study's TOML, for editors.

    No field is required, as a file with a `base` gives only what differs from it.
    """

    def lax(value: Any) -> Any:
        if isinstance(value, list):
            return [lax(each) for each in value]
        if not isinstance(value, dict):
            return value
        if value == {"type": "null"}:  # which TOML lacks
            return {"const": "none"}
        names = {"oneOf": "anyOf"}
        left_out = ("required", "discriminator")
        return {names.get(k, k): lax(each) for k, each in value.items() if k not in left_out}

    schema: dict[str, Any] = lax(Study.model_json_schema())
    for name in OWN:  # data = "file.py:make_clients"
        schema["properties"][name] = {"anyOf": [{"type": "string"}, schema["properties"][name]]}
    schema["properties"]["base"] = {"enum": setups()}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def validate(values: dict[str, Any], called: str) -> Study:
    """Return a study of these fields; an error names the first field that does not fit."""
    try:
        study = Study.model_validate(values)
    except ValidationError as error:
        # A misspelt section comes before the section that is missing because of it.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        raise InputError(f"{called}: {_describe(first)}") from None
    _check_values(study, called)
    return study


def _check_values(study: Study, called: str) -> None:
    """Refuse values that would have no effect; stored runs that have them can still be read."""
    data, accuracy = study.data, study.stop.accuracy
    if isinstance(data, SyntheticSection) and data.sizes == "paper":
        for field in ("clients", "samples", "exponent", "smallest"):
            if (value := getattr(data, field)) != SyntheticSection.model_fields[field].default:
                problem = f"'data.{field}' is {value}, but data.sizes = paper fixes the sizes"
                raise InputError(f"{called}: {problem}; set data.sizes=power-law")
    if accuracy is not None and study.measures_accuracy and not 0 <= accuracy <= 1:
        remedy = f"give {accuracy / 100:g}" if 1 < accuracy <= 100 else "give 0.85 for 85 %"
        problem = f"'stop.accuracy' is {accuracy:g}, not a share between 0 and 1"
        raise InputError(f"{called}: {problem}; {remedy}")


def change(study: Study, overrides: Iterable[str]) -> Study:
    """Return a study with other values, `section.field=value` as for --set.

    >>> change(load_study("simulation-1"), ["training.k=5"]).training.k
    5
    """
    values = study.model_dump()
    for override in overrides:
        _apply(values, override)
    return validate(values, study.name)


def setups() -> list[str]:
    """Return the names of the setups that come with fedpace."""
    return sorted(Path(each.name).stem for each in SETUPS.iterdir() if each.name.endswith("toml"))


def _values_of(name_or_path: str) -> dict[str, Any]:
    """Return the fields of a setup, including those of its base."""
    try:
        values = tomllib.loads(_text_of(name_or_path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problem = f"is not TOML: {error}"
        raise InputError(f"{name_or_path}: {problem}; see the setups in fedpace") from None
    values |= _own_sections(values)
    _look_beside(name_or_path, values)
    base = values.pop("base", None)
    if base is None:
        return values
    others = [each for each in setups() if each != name_or_path]
    if base not in others:
        got = f"{base!r}; {nearest(str(base), others)}"
        raise InputError(f"{name_or_path}: base must be a setup of fedpace, got {got}")
    return _merge(_values_of(base), values)


def _own_sections(values: dict[str, Any]) -> dict[str, Any]:
    """Return the sections that are given by a name alone."""
    names = {name: values.get(name) for name in OWN}
    return {n: {"kind": "own", "source": x} for n, x in names.items() if isinstance(x, str)}


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of both; those of `over` win, and replace a section of another kind.

    A field "none" is left out, as with --set.
    """
    both = [n for n in over if isinstance(over[n], dict) and isinstance(base.get(n), dict)]
    alike = [n for n in both if over[n].get("kind", base[n].get("kind")) == base[n].get("kind")]
    merged = base | over | {name: _merge(base[name], over[name]) for name in alike}
    return {name: value for name, value in merged.items() if value != "none"}


def _look_beside(path: str, values: dict[str, Any]) -> None:
    """Search the user's files that a TOML file names in its folder."""
    sections = [values[each] for each in OWN if isinstance(values.get(each), dict)]
    for section, field in product(sections, ("source", "loss", "metric")):
        file, _, name = str(section.get(field)).rpartition(":")
        if file.endswith(".py") and not Path(file).is_absolute():
            section[field] = f"{Path(path).parent / file}:{name}"


def check_setup(name_or_path: str, known: Iterable[str]) -> None:
    """Refuse what is neither a TOML file nor one of the `known` names."""
    known = list(known)
    if not name_or_path.endswith(".toml") and name_or_path not in known:
        got = f"'{name_or_path}'; {nearest(name_or_path, known)}"
        raise InputError(f"setup must be a known name or a .toml file, got {got}")


def _text_of(name_or_path: str) -> str:
    if name_or_path.endswith(".toml"):
        try:
            return Path(name_or_path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{name_or_path}: cannot be read: {error}; give a TOML file") from None
    check_setup(name_or_path, setups())
    return (SETUPS / f"{name_or_path}.toml").read_text(encoding="utf-8")


def _apply(values: dict[str, Any], override: str) -> None:
    """Set one field from `section.field=value`; the value is TOML or plain text."""
    key, equals, text = override.partition("=")
    *sections, field = key.strip().split(".")
    if not equals or not field:
        raise InputError(f"--set must be section.field=value, got '{override}'; see training.k=5")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise InputError(f"--set: '{section}' in '{override}' is no section; see the setup")
    if text.strip() == "none":
        values.pop(field, None)
        return
    try:
        values[field] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        values[field] = text.strip()


def _describe(error: ErrorDetails) -> str:
    """Return the field, its value, what is wrong with it, and a remedy."""
    path = [str(part) for part in error["loc"]]
    path = [part for part in path if not part.startswith(("constrained-", "literal["))]
    kind = path.pop(1) if path[:1] == ["data"] and len(path) > 1 else ""  # added by Pydantic
    field = ".".join([*path, "kind"] if error["type"].startswith("union_tag") else path)
    if error["type"] == "extra_forbidden":
        if kind and path[-1] in {*SyntheticSection.model_fields, *ImagesSection.model_fields}:
            remedy = OWN_DATA if kind == "own" else "begin with a setup of that kind"
            return f"'{field}' does not go with data.kind = {kind}; {remedy}"
        what = "section" if len(path) == 1 and isinstance(error["input"], dict) else "field"
        return f"'{field}' is not a known {what}; {nearest(path[-1], _known_fields(path, kind))}"
    if error["type"] in ("missing", "union_tag_not_found"):
        return f"'{field}' is missing; see the setups in fedpace"
    if error["type"] == "union_tag_invalid":
        got, known = error["ctx"]["tag"], error["ctx"]["expected_tags"].replace("'", "")
        return f"'{field}' is '{got}'; {nearest(str(got), known.split(', '))}"
    for short, words in BOUNDS.items():
        if (bound := error.get("ctx", {}).get(short)) is not None:
            remedy = f"set {field}={bound:g}" if short in ("ge", "le") else "give such a number"
            return f"'{field}' is {error['input']!r:.200}, not {words} {bound:g}; {remedy}"
    message = error["msg"].removeprefix("Value error, ")
    message = f"{message[0].lower()}{message[1:]}"
    return f"'{field}' is {error['input']!r:.200}; {message}" if field else message


def _known_fields(path: list[str], kind: str) -> list[str]:
    """Return the fields of a study, or of the section that the path leads to."""
    annotation = Study.model_fields[path[0]].annotation if len(path) > 1 else Study
    sections: tuple[Any, ...] = get_args(annotation) or (annotation,)

    def fits(section: Any) -> bool:
        return not kind or kind in get_args(section.model_fields["kind"].annotation)

    return list(next(filter(fits, sections)).model_fields)
