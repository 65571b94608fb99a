"""All texts of a report: titles, the headline, notes, and reasons for what a run did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from fedpace.backends.privacy import describe_epsilon
from fedpace.data.partition import PAPER_SIZES
from fedpace.errors import InputError
from fedpace.registry import is_biased
from fedpace.report.forecast import NAMES, forecasts, seen_of
from fedpace.report.setups import MEASURED, Setup, plain_name
from fedpace.report.summary import BASELINE, PROPOSED, SchemeSummary, Summary, shows_accuracy
from fedpace.report.time_to_target import Interval, seeds_needed, sustains
from fedpace.studies.runner import local_steps_note
from fedpace.studies.store import StoredRun
from fedpace.studies.study import Study, SyntheticSection, load_study, setups
from fedpace.training.history import SUSTAINED, Row
from fedpace.training.stopping import DIVERGED

# Rounds that a report's prediction is made from.
FORESEEN = 20
CAPTION = "Mean over seeds, with its 95 % interval; times include pilots unless said otherwise."
NO_ACCURACY = "There is no curve of test accuracy: it was not evaluated along the way."
SUSTAINED_NOTE = (
    "Time to the loss is that of its first touch, as in the paper; sustained, that until the mean "
    f"of the last {SUSTAINED} evaluated losses has reached it; asynchronously, of those over "
    f"{SUSTAINED} C updates."
)
BIASED_NOTE = (
    "A scheme marked as biased does not weight updates so that their mean is that of full "
    "participation: it may end at another model, and some targets may be beyond it."
)
UNSUSTAINED_NOTE = "Runs ended at the first touch of the target: there is no sustained time."


def notes(summary: Summary) -> list[str]:
    """Return what a reader has to know to read the table."""
    lines = [
        "Mean over seeds with its 95 % interval (Student's t, on the logarithm). “Time vs” is the "
        "scheme's time over the other's, “times sooner” its inverse: the ratio of the means over "
        "the seeds that both have, with the interval of the paired delta method on its logarithm. "
        "Rounds count those of the final model: of the two pilots, the one that training "
        "continued from."
    ]
    lines += [
        *sustained_note(summary),
        *missed_targets(summary),
        *diverged_schemes(summary),
        limit_note(summary),
    ]
    lines += predicted_note(summary)
    steps = local_steps_note(summary.setup.study, list(map(plain_name, summary.setup.schemes)))
    lines += [f"{steps}."] if steps else []
    lines += measured_notes(summary.setup)
    lines += privacy_notes(summary.setup)
    if any(is_biased(plain_name(scheme)) for scheme in summary.setup.schemes):
        lines.append(BIASED_NOTE)
    if not shows_accuracy(summary.setup):
        lines.append(NO_ACCURACY)
    study = summary.setup.study
    if study.paper and study.paper_loss not in (None, study.stop.loss):
        lines.append(f"The paper's figures are for the target loss {study.paper_loss:g}.")
    if math.isfinite(summary.accuracy.value) and study.stop.accuracy is None:
        end = "when the target loss is sustained" if sustains(study) else "at the target loss"
        lines.append(
            f"The target accuracy is the one with which {PROPOSED} first reaches the target loss, "
            f"on average. Runs end {end}, some of them before that accuracy: those are counted "
            "beside the time, which is then a lower bound."
        )
    return lines


def sustained_note(summary: Summary) -> list[str]:
    """Return what the second time means, as one sentence; none without a target loss."""
    study = summary.setup.study
    if sustains(study):
        return [SUSTAINED_NOTE]
    return [] if study.stop.loss is None else [UNSUSTAINED_NOTE]


def limit_note(summary: Summary) -> str:
    """Return what the limit is, and how long it takes."""
    slots = summary.setup.study.training.slots
    once, in_turn = summary.limits
    note = (
        f"“Over the limit” is the time over {_seconds(once.value)}, max(t_max, Σ t / {slots}): the "
        f"least in which {slots} at work hear from every client once with this local work."
    )
    if math.isfinite(in_turn.value):
        note += f" Full participation's rounds as steps of one client each, with {slots} always "
        note += f"at work, would take {_seconds(in_turn.value)}."
    return note


def predicted_note(summary: Summary) -> list[str]:
    """Return what the first rounds of uniform sampling would have predicted, if it was run."""
    runs, target = summary.setup.of(BASELINE), summary.setup.study.stop.loss
    names = [scheme for scheme in summary.setup.schemes if scheme in NAMES]
    if not runs or target is None or len(names) < 2:
        return []
    try:
        found = forecasts(seen_of(runs[0], FORESEEN), target, names)
    except InputError:  # too few rounds, or none
        return []
    each = (f"{x.scheme} {x.seconds:,.0f} s ({x.low:,.0f} to {x.high:,.0f})" for x in found)
    first = f"Predicted from the first {FORESEEN} rounds of {BASELINE}, seed {runs[0].seed}"
    return [f"{first}: {', '.join(each)}; see fedpace predict."]


def missed_targets(summary: Summary) -> list[str]:
    """Name each scheme of which some runs never reached the target, or never sustained it."""
    sustained = sustains(summary.setup.study)
    return [line for row in summary.rows for line in _describe_misses(row, sustained)]


def _describe_misses(row: SchemeSummary, sustained: bool) -> Iterator[str]:
    misses, later = row.runs - row.reached, row.runs - row.sustained_seconds.seeds
    for count, what, time in (
        (misses, "reached", "time"),
        # A scheme that never reached it is already named.
        (later if sustained and later > misses else 0, "sustained", "sustained time"),
    ):
        if count:
            bound = f"; its {time} is that of the others, a lower bound (≥)" * (count < row.runs)
            yield f"{row.scheme}: {count} of {row.runs} not {what}{bound}."


def diverged_schemes(summary: Summary) -> list[str]:
    """Name each scheme of which some runs ended because their loss was no longer a number."""
    found = {
        scheme: sum(run.ended == DIVERGED for run in summary.setup.of(scheme))
        for scheme in summary.setup.schemes
    }
    return [
        f"{scheme}: {plural(count, 'run')} diverged: the loss was no longer a number. Lower the "
        "learning rate (training.schedule), or look for NaN in the data."
        for scheme, count in found.items()
        if count
    ]


MODELS = {
    "logistic": "logistic regression",
    "lenet5": "LeNet-5",
    "small-cnn": "a small CNN",
    "gru": "a GRU",
}
POOLS = {
    "mnist": "MNIST",
    "emnist-lower": "EMNIST letters",
    "cifar10": "CIFAR-10",
    "shakespeare": "Shakespeare",
}
# What makes a study another setup; how it samples and stops does not.
COMPARED = ("data", "model", "devices")
COMPARED_TRAINING = ("k", "local_steps", "batch", "schedule", "weight_decay", "optimiser")


def is_published(study: Study) -> bool:
    """Return whether a study is the setup of its name, as far as that is one of fedpace's.

    Only then the paper's figures stand beside it.
    """
    return study.name not in setups() or _compared_settings(study) == _compared_settings(
        _setup(study.name)
    )


def title_of(study: Study) -> str:
    """Return a study's own title, or one made of its configuration where that was changed.

    >>> title_of(load_study("simulation-1", ["training.k=3", "data.sizes=power-law"]))
    'simulation-1, changed: logistic regression, Synthetic(1, 1), N = 100, K = 3'
    """
    if study.title and is_published(study):
        return study.title
    clients = _clients(study)
    known = [] if clients is None else [f"N = {clients}"]
    what = ", ".join([_model(study), _data(study), *known, f"K = {study.training.k}"])
    return f"{study.name}, changed: {what}" if study.name in setups() else f"{study.name}: {what}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "seed"), plural(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{count:,} {noun}" + "s" * (count != 1)


@lru_cache
def _setup(name: str) -> Study:
    return load_study(name)


def _compared_settings(study: Study) -> tuple[object, ...]:
    training = (getattr(study.training, name) for name in COMPARED_TRAINING)
    return (*(getattr(study, name) for name in COMPARED), *training)


def _model(study: Study) -> str:
    if study.model.source is None:
        return MODELS[study.model.kind]
    return study.model.source.rpartition(":")[2].partition("-")[0]


def _data(study: Study) -> str:
    if isinstance(study.data, SyntheticSection):
        return f"Synthetic({study.data.alpha:g}, {study.data.beta:g})"
    return POOLS.get(study.data.kind, "own data")


def _clients(study: Study) -> int | None:
    if isinstance(study.data, SyntheticSection) and study.data.sizes == "paper":
        return len(PAPER_SIZES)
    return study.data.clients


class Fared(NamedTuple):
    """What became of the replies of some runs; megabytes per round, NaN if not measured.

    A client that is drawn more than once in a round is asked once. `refused` are among `missing`.
    """

    asked: int
    missing: int
    refused: int
    megabytes_down: float
    megabytes_up: float


def count_replies(runs: Sequence[StoredRun]) -> Fared:
    """Count the replies over all rounds of the runs."""
    rows = [row for run in runs for row in run.history.rows if row.round > 0]
    missing = sum(row.missing.size for row in rows)
    asked = sum(row.clients.size for row in rows) + missing
    down, up = (
        sum(int(getattr(row, name).sum()) for row in rows) for name in ("bytes_down", "bytes_up")
    )
    per_round = [total / 1e6 / len(rows) if total else math.nan for total in (down, up)]
    return Fared(asked, missing, sum(row.refused.size for row in rows), *per_round)


def how_measured(study: Study) -> str:
    """Return where the times come from, in one sentence; empty for simulated runs.

    >>> from fedpace.studies.study import load_study
    >>> how_measured(load_study("prototype", ["network.how=namespaces", "network.time_scale=0.2"]))
    'Measured, devices in network namespaces; time scale 0.2: one second here stands for 5 s.'
    """
    if study.network is None:
        return ""
    scale = study.network.time_scale
    stands = f"; time scale {scale:g}: one second here stands for {1 / scale:.3g} s"
    return f"Measured, {MEASURED[study.network.how][1]}{'' if scale == 1 else stands}."


def replies_line(setup: Setup) -> str:
    """Return how replies fared, all schemes together, in one sentence."""
    every = count_replies(setup.runs)
    missing = f"{every.missing:,} missing"
    if every.missing:
        share = f"{100 * every.missing / every.asked:.2g} %"
        missing += f" ({share}), {every.refused:,} of them refused"
    sizes = [count_replies(setup.of(scheme)) for scheme in setup.schemes]
    down = _span([each.megabytes_down for each in sizes])
    up = _span([each.megabytes_up for each in sizes])
    crossed = f"; {down} MB down and {up} MB up per round" if down else ""
    return f"Replies: {every.asked:,} asked for, {missing}{crossed}."


def measured_line(setup: Setup) -> list[str]:
    """Return how it was measured and how replies fared, as one line; none for simulated runs."""
    how = how_measured(setup.study)
    return [f"{how} {replies_line(setup)}"] if how else []


def measured_notes(setup: Setup) -> list[str]:
    """Return what a reader has to know of measured runs; nothing for simulated ones."""
    study = setup.study
    if study.network is None:
        return []
    lines = [how_measured(study)]
    if study.paper and study.network.time_scale != 1:
        lines[0] += " The paper's seconds are as published."
    lines.append(replies_line(setup))
    if len(setup.schemes) > 1:
        parts = "; ".join(
            _by_scheme(scheme, count_replies(setup.of(scheme))) for scheme in setup.schemes
        )
        lines.append(f"By scheme: {parts}.")
    every = study.network.evaluate_every
    if every == 0:
        lines.append(
            "Losses are estimated from those that the drawn clients report; the complete model was "
            "evaluated at the start, and where the estimate had passed the target."
        )
    elif every > 1:
        lines.append(
            f"The complete model was evaluated every {_ordinal(every)} round, and where the loss "
            "that the drawn clients report had passed the target; curves show these rounds alone."
        )
    return lines


def _by_scheme(scheme: str, each: Fared) -> str:
    text = f"{scheme} {each.asked:,} asked, {each.missing:,} missing"
    if math.isnan(each.megabytes_down):
        return text
    return f"{text}, {each.megabytes_down:.3g} MB down, {each.megabytes_up:.3g} MB up"


def _span(values: Sequence[float]) -> str:
    """Return the values as "3.1", or "3.1 to 31" where they differ; empty if none is known."""
    known = sorted(filter(math.isfinite, values))
    ends = dict.fromkeys(f"{value:.3g}" for value in (*known[:1], *known[-1:]))
    return " to ".join(ends)


def _ordinal(number: int) -> str:
    """Return 2nd, 3rd, 11th.

    >>> [_ordinal(number) for number in (2, 3, 11, 21)]
    ['2nd', '3rd', '11th', '21st']
    """
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


# Schemes that the headline compares the first with: the next, and the slowest.
MOST_OTHERS = 3
# More seeds than this are not worth naming.
MOST_SEEDS = 1_000


def headline(summary: Summary) -> str:
    """Return which scheme reached the target first, and what its intervals say about the others.

    A scheme counts as sooner where the 95 % interval of the paired ratio excludes 1; where it
    includes 1, the headline says so and how many more seeds would show a difference of this size.
    Empty where no scheme reached the target with every seed.
    """
    arrived = [row for row in summary.rows if _always_arrived(row)]
    if not arrived:
        return ""
    best = min(arrived, key=lambda row: row.seconds.value)
    seeds = plural(len(summary.setup.seeds), "seed")
    first = f"{best.scheme} reached {summary.target} in {_seconds(best.seconds.value)}"
    others = sorted(
        (row for row in summary.rows if row is not best and math.isfinite(row.seconds.value)),
        key=lambda row: row.seconds.value,
    )
    if not others:
        return f"{first}; {seeds}."
    shown = others if len(others) <= MOST_OTHERS else [others[0], *others[-MOST_OTHERS + 1 :]]
    ratios = {row.scheme: summary.ratio(row.scheme, best.scheme) for row in shown}
    clear = [row for row in shown if ratios[row.scheme].low > 1]
    wins = [f"{_times(row, ratios[row.scheme])} than {row.scheme}" for row in clear]
    wins[:1] = [win.replace("× than", "× sooner than") for win in wins[:1]]
    unclear = {row.scheme: ratios[row.scheme] for row in shown if ratios[row.scheme].low <= 1}
    doubts = [_doubt(unclear)] if unclear else []
    if any(math.isnan(ratio.low) for ratio in ratios.values()):
        doubts.append("one seed gives no interval: run three or more")
    counted = [seeds] * (not unclear)
    return f"{'; '.join([', '.join([first, *wins]), *doubts, *counted])}."


def _doubt(ratios: Mapping[str, Interval]) -> str:
    """Return from which schemes no difference is shown, and how many more seeds would show it."""
    needed = [seeds_needed(ratio, most=MOST_SEEDS) for ratio in ratios.values()]
    known = sorted({more for more in needed if more is not None})
    if not known:
        remedy = f"more than {MOST_SEEDS:,} more would be needed to show one"
    elif None in needed:
        remedy = f"about {known[0]:,} to more than {MOST_SEEDS:,} more would show one"
    else:
        remedy = f"about {' to '.join(f'{x:,}' for x in (known[0], known[-1])[: len(known)])} more"
        remedy += " would show one"
    names = [*ratios]
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    seeds = plural(min(ratio.seeds for ratio in ratios.values()), "seed")
    return f"no clear difference from {listed} with {seeds}; {remedy}"


def _times(row: SchemeSummary, ratio: Interval) -> str:
    return f"{'more than ' * (row.reached < row.runs)}{ratio.value:.1f}×"


def _always_arrived(row: SchemeSummary) -> bool:
    return 0 < row.runs == row.reached and math.isfinite(row.seconds.value)


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.3g} s"


UNCOVERED = (
    "That is for updates alone: sample counts, losses, evaluations and times are sent as they are."
)


def privacy_notes(setup: Setup) -> list[str]:
    """Return what the updates of the client that was asked most often may tell; empty without."""
    privacy = setup.study.privacy
    if privacy is None:
        return []
    clip, noise, delta = privacy.clip, privacy.noise, privacy.delta
    lines = [
        f"Privacy: clients cut updates to length {clip:g} and add noise of standard deviation "
        f"{noise:g} × {clip:g} to each number. The server knows whom it drew, so no sampling "
        "amplifies this; updates of the same clients in several runs add up."
    ]
    for scheme in setup.schemes:
        rows = (run.history.rows for run in setup.of(scheme))
        lines.append(f"{scheme}: {describe_epsilon(noise, rows, delta)}.")
    return [*lines, UNCOVERED]


class Change(NamedTuple):
    """The round from which on a reason holds, and the seconds at its start."""

    round: int
    seconds: float
    why: str


def changes(rows: Sequence[Row]) -> list[Change]:
    """Return the rounds whose reason is not that of the round before; none without reasons.

    >>> row = Row("train", 1, 2.0, 1.0, 0.5, 2.0, 2.0, why="10 tiers: steps agree")
    >>> changes([row, row._replace(round=2, seconds=4.0)])
    [Change(round=1, seconds=0.0, why='10 tiers: steps agree')]
    """
    before = ["", *(row.why for row in rows)]
    return [
        Change(row.round, row.seconds - row.round_seconds, row.why)
        for row, last in zip(rows, before, strict=False)
        if row.why and row.why != last
    ]
