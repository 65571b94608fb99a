"""Schemes, samplers and servers of a user's own, by name and as objects."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

from fedpace import (
    Adam,
    Design,
    Pace,
    Profile,
    Solve,
    Stop,
    WithReplacement,
    constant,
    sampler_for,
    train,
)
from fedpace.cli import main
from fedpace.errors import InputError
from fedpace.flower import AdaptiveSampling, Pilots, WarmUp
from fedpace.samplers.build import resolve
from fedpace.sampling.design import as_design
from fedpace.sampling.schemes import SCHEMES
from fedpace.seeds import Seeds
from fedpace.studies.store import Store
from fedpace.training.checkpoint import STRUCTURE, pack
from tests.flower import federation
from tests.flower.federation import CLIENTS, RATE, START, as_vector, client_app, steady, strategy_on
from tests.flower.memory_grid import MemoryGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_scheme.py"
Curious: Any = resolve(f"{EXAMPLE}:Curious")
SERVER = """
import numpy as np

class Momentum:
    def init(self, parameters):
        return {"velocity": np.zeros_like(parameters)}

    def apply(self, state, parameters, draw, reply):
        velocity = 0.5 * state["velocity"] + draw.weights @ reply.updates
        return parameters + velocity, {"velocity": velocity}
"""


def squared(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
    q = profile.weights**2
    return WithReplacement(q / q.sum(), k, profile.weights)


class Killed(BaseException):
    """As good as a power cut."""


def trained(
    path: Path, *, first_id: int = 1000, kill_after: int = 0, **settings: Any
) -> AdaptiveSampling:
    grid = MemoryGrid(client_app(), steady, partitions=range(CLIENTS), first_id=first_id)
    strategy = strategy_on(grid, checkpoint=path, **settings)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if kill_after and server_round > kill_after:
            raise Killed
        return MetricRecord({"loss": federation.evaluated(as_vector(arrays)).loss})

    strategy.start(grid, START, num_rounds=12, evaluate_fn=evaluate)
    return strategy


def rounded(text: str) -> str:
    """Return a text with its numbers rounded: replies come in any order, and so are summed."""
    return re.sub(r"\d+\.\d+(e-?\d+)?", lambda found: f"{float(found[0]):.6g}", text)


OWN: dict[str, Any] = {
    "pace": {"scheme": "pace", "refresh": 3},
    "pace with a memory": {"scheme": "pace", "server": "memory"},
    "an object": {"scheme": Curious(k=4)},
    "a class": {"scheme": Curious},
    "a name": {"scheme": f"{EXAMPLE}:Curious"},
    "adam": {"scheme": "weighted", "server": "adam:0.1"},
    "an object that is a server": {"scheme": "weighted", "server": Adam(0.1)},
}


@pytest.mark.parametrize("name", OWN)
def test_a_state_of_ones_own_is_kept_and_resumed(name: str, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained(tmp_path / "killed.npz", kill_after=7, **OWN[name])
    resumed = trained(tmp_path / "killed.npz", first_id=70, **OWN[name])
    whole = trained(tmp_path / "whole.npz", **OWN[name])
    assert [row.round for row in resumed.history.rows] == list(range(13))
    assert resumed.outcome is not None
    assert whole.outcome is not None
    mine, theirs = resumed.outcome.state, whole.outcome.state
    np.testing.assert_allclose(mine.parameters, theirs.parameters, atol=1e-9)
    for state, expected in ((mine.sampler, theirs.sampler), (mine.server, theirs.server)):
        kept, arrays = pack(state), pack(expected)
        assert rounded(str(kept.pop(STRUCTURE))) == rounded(str(arrays.pop(STRUCTURE)))
        for each, array in arrays.items():
            np.testing.assert_allclose(kept[each], array, atol=1e-9)
    drawn = [row.clients.tolist() for row in resumed.history.rows]
    assert drawn == [row.clients.tolist() for row in whole.history.rows]


def test_adam_is_that_of_our_loop(tmp_path: Path) -> None:
    strategy = trained(tmp_path / "run.npz", scheme="uniform", server="adam:0.1", seed=2)
    outcome = train(
        federation.simulator(),
        sampler_for("uniform", 4, learn=WarmUp(5)),
        server=Adam(0.1),
        schedule=constant(RATE),
        stop=Stop(rounds=12),
        seeds=Seeds(2),
    )
    losses = [row.loss for row in strategy.history.rows]
    np.testing.assert_allclose(losses, [row.loss for row in outcome.history.rows], atol=1e-6)
    plain = trained(tmp_path / "plain.npz", scheme="uniform", seed=2)
    assert abs(plain.history.rows[-1].loss - losses[-1]) > 1e-3


def test_a_server_in_a_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SERVER)
    server = f"{tmp_path}/mine.py:Momentum"
    strategy = trained(tmp_path / "run.npz", scheme="full", server=server)
    assert strategy.outcome is not None
    assert np.abs(strategy.outcome.state.server["velocity"]).max() > 0


def test_a_scheme_that_is_a_function_learns_first_unless_it_says_that_it_need_not(
    tmp_path: Path,
) -> None:
    def counts_only(profile: Profile, k: int, *, max_weight: float | None = None) -> Design:
        return squared(profile, k)

    counts_only.needs_counts_only = True  # type: ignore[attr-defined]
    for scheme, phases in ((squared, {"warm-up", "train"}), (counts_only, {"train"})):
        strategy = trained(tmp_path / f"{len(phases)}.npz", scheme=scheme)
        assert {row.phase for row in strategy.history.rows} == phases
        assert strategy.outcome is not None
        again = as_design(squared(strategy.outcome.profile, 4))
        np.testing.assert_allclose(strategy.outcome.design.q, again.q)


def test_by_default_it_is_pace_with_its_own_warm_up_and_no_cap() -> None:
    strategy = AdaptiveSampling(k=10)
    pace = strategy.sampler()
    assert isinstance(pace, Pace)
    assert (pace.k, pace.warm_up, pace.refresh, pace.max_weight) == (10, 3, 10, None)
    assert strategy.learning_rounds == 3
    assert strategy.about()["flower"] == "pace"
    assert strategy.about()["pilots"] == {"rounds": 3}
    given = AdaptiveSampling(k=10, pilots=WarmUp(7), max_weight=0.5, refresh=4, c_over_s0=2.0)
    pace = given.sampler()
    assert isinstance(pace, Pace)
    assert (pace.warm_up, pace.max_weight, pace.refresh, pace.c_over_s0) == (7, 0.5, 4, 2.0)
    assert given.learning_rounds == 7
    (remark,) = AdaptiveSampling(k=10).remarks(3)
    assert remark.startswith("no round is drawn by pace")


@pytest.mark.parametrize(
    ("settings", "warm_up", "cap"),
    [
        ({"scheme": "optimal-mean"}, 10, 1.0),
        ({"scheme": "optimal-mean", "max_weight": None}, 10, None),
        ({"scheme": SCHEMES["optimal-max"], "max_weight": 2.0, "pilots": WarmUp(4)}, 4, 2.0),
        ({"scheme": "optimal-mean-no-pilots"}, 3, 1.0),
        ({"scheme": squared}, 10, 1.0),
    ],
)
def test_a_scheme_has_its_usual_warm_up_and_cap(
    settings: dict[str, Any], warm_up: int, cap: float | None
) -> None:
    strategy = AdaptiveSampling(k=4, **settings)
    sampler = strategy.sampler()
    assert isinstance(sampler, Solve)
    assert (sampler.warm_up, sampler.max_weight) == (warm_up, cap)
    assert strategy.learning_rounds == warm_up
    assert strategy.about()["max_weight"] == cap


def test_the_default_trains_and_draws_tiers_in_turn(tmp_path: Path) -> None:
    grid = federation.grid_with(norms=False)
    strategy = AdaptiveSampling(
        k=4, fraction_evaluate=0.0, expected_nodes=CLIENTS, clock=grid.clock, out=tmp_path
    )
    strategy.start(grid, START, num_rounds=20)
    rows = strategy.history.rows
    assert {row.phase for row in rows[4:]} == {"train"}
    assert {row.tier for row in rows[4:]} == {0, 1, 2}
    assert "measured on" in rows[-1].why
    (stored,) = Store(tmp_path).runs()
    assert (stored.scheme, stored.study.sampling.max_weight) == ("pace", None)
    assert stored.study.sampling.warm_up == 3


class WithoutK:
    def __init__(self) -> None: ...


class WithoutDesign:
    def __init__(self, k: int) -> None: ...

    def init(self, n: int) -> None: ...


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scheme": 42}, "scheme 42 must define design, got int without design"),
        ({"scheme": WithoutK}, r"scheme must be made with k=4, got .*WithoutK"),
        ({"scheme": WithoutDesign}, "scheme .* must define design, got WithoutDesign without"),
        ({"scheme": "optimal"}, "scheme must be a known name.*did you mean"),
        ({"scheme": "nowhere.py:mine"}, "scheme must be in a file that can be read"),
        ({"scheme": f"{EXAMPLE}:Curios"}, "did you mean 'Curious'"),
        ({"server": "adam:fast"}, "server must be adam:RATE"),
        ({"server": "medium"}, "server must be a known name"),
        ({"server": Adam}, "server must be an object, got the class Adam"),
        ({"server": 0.1}, "server must define apply, got float without apply"),
    ],
)
def test_what_is_none_is_refused_at_once(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        AdaptiveSampling(k=4, **settings)


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("uniform", "uniform"),
        (SCHEMES["optimal-mean"], "optimal-mean"),
        (squared, "squared"),
        (Curious, "Curious"),
        (Curious(k=4), "Curious"),
        (f"{EXAMPLE}:Curious", f"{EXAMPLE}:Curious"),
        (sampler_for(squared, 4, learn=WarmUp(3)), "Solve(scheme=<function squared>, k=4, warm_up"),
    ],
)
def test_a_checkpoint_knows_whose_it_is(scheme: Any, name: str) -> None:
    strategy = AdaptiveSampling(k=4, scheme=scheme)
    about = json.loads(json.dumps(strategy.about()))
    assert about["flower"].startswith(name)
    assert "0x" not in about["flower"]
    assert (about["sources"][0] is None) == (name == "uniform")
    assert about == AdaptiveSampling(k=4, scheme=scheme).about() | {"pilots": {"rounds": 10}}


def test_a_checkpoint_of_an_earlier_text_is_refused(tmp_path: Path) -> None:
    own, path = tmp_path / "own.py", tmp_path / "run.npz"
    own.write_text(EXAMPLE.read_text())
    trained(path, scheme=f"{own}:Curious")
    own.write_text(EXAMPLE.read_text().replace("0.7", "0.6"))
    with pytest.raises(InputError, match="another run"):
        trained(path, scheme=f"{own}:Curious")


@pytest.mark.parametrize("scheme", [Curious(k=4), Curious, squared, f"{EXAMPLE}:Curious"])
def test_summary_and_doubts_cope_with_any(scheme: Any, caplog: pytest.LogCaptureFixture) -> None:
    strategy = AdaptiveSampling(k=4, scheme=scheme, server=Adam(0.2))
    with caplog.at_level("INFO"):
        strategy.summary()
    assert f"fedpace: {strategy.scheme_name}, K = 4" in caplog.text
    assert "Adam(rate=0.2" in caplog.text
    assert len([*strategy.remarks(10)]) == (scheme is squared)


def test_every_kind_of_run_is_stored_under_its_name_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    for pilots, scheme in (
        (WarmUp(5), "uniform"), (WarmUp(5), Curious(k=4)),
        (Pilots((0.95,), rounds=3), "optimal-max"),
    ):  # fmt: skip
        grid = federation.grid_with()
        strategy = strategy_on(
            grid, scheme=scheme, pilots=pilots, fraction_evaluate=1.0, evaluate_every=1,
            target_loss=0.95, out=runs,
        )  # fmt: skip
        strategy.start(grid, START, num_rounds=12)
        strategy.history.write_csv(tmp_path / "history.csv")
        assert (tmp_path / "history.csv").read_text().startswith("phase,round,seconds,loss")
    monkeypatch.setattr("sys.argv", ["fedpace", "report", str(runs)])
    with contextlib.suppress(SystemExit):
        main()
    out = capsys.readouterr().out
    for name in ("uniform", "Curious", "optimal-max"):
        assert name in out
    assert (runs / "report.html").exists()
