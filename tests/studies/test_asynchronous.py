"""Studies without a barrier: settings, schemes, and runs that are stored and reported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.profile import Profile
from fedpace.registry import METHODS, method_names
from fedpace.report.setups import setups_of
from fedpace.samplers.build import sampler_for
from fedpace.samplers.solve import Shares
from fedpace.seeds import Seeds
from fedpace.servers.asynchronous import FedAsync, FedBuff
from fedpace.studies.build import run_one, sampler, simulator
from fedpace.studies.store import Store
from tests.studies.tiny import run_here, tiny_study, write_setup

ASYNC = ("training.mode=asynchronous", "training.buffer=2")


@pytest.mark.parametrize("scheme", method_names(mode="asynchronous"))
def test_every_scheme_runs_and_is_the_same_every_time(scheme: str, tmp_path: Path) -> None:
    study = tiny_study(tmp_path, *ASYNC)
    one, other = run_one(study, scheme, 0), run_one(study, scheme, 0)
    np.testing.assert_array_equal(one.state.parameters, other.state.parameters)
    rows = one.history.rows[1:]
    if scheme not in ("pisces", "fedcompass"):  # which step at a pace of their own
        buffer = METHODS[scheme].buffer or 2
        assert {row.clients.size + row.missing.size for row in rows} == {buffer}
    assert all(row.versions.size == row.clients.size == row.began.size for row in rows)


@pytest.mark.parametrize("hidden", [False, True])
def test_weights_are_those_of_the_data_whether_times_are_known_or_not(
    hidden: bool, tmp_path: Path
) -> None:
    more = ["devices.known=false"] if hidden else []
    study = tiny_study(tmp_path, *ASYNC, *more, "stop.loss=none", "stop.rounds=600")
    for scheme in ("weighted", "optimal-mean"):
        outcome = run_one(study, scheme, 1)
        rows = outcome.history.rows[1:]
        given = np.zeros(12)
        for row in rows:
            np.add.at(given, row.clients, row.weights)
        assert np.abs(given / given.sum() - outcome.profile.weights).sum() < 0.06


def test_the_buffer_is_the_schemes_own_else_as_many_as_are_at_work(tmp_path: Path) -> None:
    study = tiny_study(tmp_path, "training.mode=asynchronous", "training.at_once=4")
    rows = run_one(study, "weighted", 0).history.rows[1:]
    assert {row.clients.size for row in rows} == {4}
    rows = run_one(study, "fedasync", 0).history.rows[1:]
    assert {row.clients.size for row in rows} == {1}


def test_published_schemes_have_their_servers(tmp_path: Path) -> None:
    study = tiny_study(tmp_path, *ASYNC)
    backend = simulator(study, 0)
    assert sampler(study, "fedbuff", backend, Seeds(0)).server == FedBuff()
    assert sampler(study, "fedasync", backend, Seeds(0)).server == FedAsync()


def test_knobs_are_a_schemes_own(tmp_path: Path) -> None:
    knobs = ("sampling.knobs.fedasync.mixing=0.3", "sampling.knobs.weighted.buffer=3")
    study = tiny_study(tmp_path, *ASYNC, *knobs)
    made = sampler(study, "fedasync", simulator(study, 0), Seeds(0))
    assert made.server == FedAsync(mixing=0.3)
    sizes = {row.clients.size for row in run_one(study, "weighted", 0).history.rows[1:]}
    assert sizes == {3}
    sizes = {row.clients.size for row in run_one(study, "uniform", 0).history.rows[1:]}
    assert sizes == {2}
    rounds = tiny_study(tmp_path, *knobs)
    assert sampler(rounds, "weighted", simulator(rounds, 0), Seeds(0)).k == 3  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="knobs must be those of its server, got mix for 'fedasy"):
        sampler_for("fedasync", 4, mode="asynchronous", knobs={"mix": 1})
    with pytest.raises(InputError, match="knobs must be buffer, or those of a server, got d for"):
        sampler_for("uniform", 4, mode="asynchronous", knobs={"d": 1})


@pytest.mark.parametrize(
    ("overrides", "schemes", "message"),
    [
        (["training.buffer=2"], "weighted", "at_once and buffer are for asynchronous training"),
        ([*ASYNC, "training.buffer=0"], "weighted", "'training.buffer' is 0"),
        ([*ASYNC, "training.at_once=13"], "weighted", "training.at_once must be at most the"),
        ([*ASYNC, "training.k=500"], "weighted", "got 500 for 12 clients; set training.k=6"),
        ([*ASYNC], "full", "full needs rounds, got mode asynchronous"),
        ([*ASYNC], "optimal-tiers", "optimal-tiers needs rounds, got mode asynchronous"),
        ([], "fedbuff", "fedbuff has no rounds, got mode synchronous"),
        ([*ASYNC, "training.mode=quick"], "weighted", "'training.mode' is 'quick'"),
    ],
)
def test_says_in_one_line_what_does_not_go_together(
    overrides: list[str], schemes: str, message: str, tmp_path: Path
) -> None:
    settings = [word for each in overrides for word in ("--set", each)]
    done = run_here(write_setup(tmp_path), "--schemes", schemes, *settings, "--out", tmp_path / "o")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_oracle_and_pilots_are_refused_or_left_out(tmp_path: Path) -> None:
    study = tiny_study(tmp_path, *ASYNC, "sampling.oracle=true")
    with pytest.raises(InputError, match=r"sampling\.oracle needs rounds"):
        run_one(study, "optimal-mean", 0)
    rows = run_one(tiny_study(tmp_path, *ASYNC), "optimal-mean", 0).history.rows
    assert {row.phase for row in rows} <= {"warm-up", "train"}
    with pytest.raises(InputError, match="fedbuff has no rounds"):
        sampler_for("fedbuff", 3)


def test_the_command_compares_modes_in_one_report(tmp_path: Path) -> None:
    setup, out = write_setup(tmp_path), tmp_path / "runs"
    common = ("--seeds", 1, "--processes", 1, "--out", out)
    settings = [word for each in ASYNC for word in ("--set", each)]
    assert run_here(setup, "--schemes", "weighted", *common).returncode == 0
    assert run_here(setup, "--schemes", "weighted,fedbuff", *settings, *common).returncode == 0
    (both,) = setups_of(Store(out).runs())
    assert both.schemes == [
        "weighted", "weighted (asynchronous, B = 2)", "fedbuff (asynchronous, B = 2)",
    ]  # fmt: skip
    assert not both.study.training.asynchronous
    again = run_here(setup, "--schemes", "weighted,fedbuff", *settings, *common)
    assert again.returncode == 0  # what is stored is not run again
    assert len(list(Store(out).runs())) == 3


def test_shares_are_bounded_by_what_a_device_can_do() -> None:
    profile = Profile([0.7, 0.1, 0.1, 0.1], [10.0, 1.0, 1.0, 1.0], [1.0, 2.0, 1.0, 1.0])
    for name in ("uniform", "weighted", "statistical", "optimal-mean"):
        design: Any = Shares(name, at_once=2)(profile, 2)
        busy = design.q * profile.times / (design.q @ profile.times) * 2
        assert busy.max() <= 1 + 1e-9
        assert busy[0] == pytest.approx(1.0) or name in ("uniform", "optimal-mean")


def test_samplers_of_a_users_own_are_taken_as_they_are() -> None:
    class Mine:
        def __init__(self, k: int) -> None:
            self.k = k

        def init(self, n: int) -> None: ...
        def design(self, state: Any, known: Any) -> Any: ...
        def observe(self, state: Any, row: Any) -> None: ...

    assert sampler_for(Mine, 5, mode="asynchronous").k == 5  # type: ignore[attr-defined]


def test_in_auto_pace_decides_for_itself_and_the_report_names_it(tmp_path: Path) -> None:
    study = tiny_study(tmp_path, "training.mode=auto", "stop.loss=none", "stop.rounds=12")
    outcome = run_one(study, "pace", 0)
    rows = outcome.history.rows[1:]
    assert [row.phase for row in rows[:4]] == ["warm-up"] * 3 + ["train"]
    assert "asynchronous training is predicted" in rows[3].why
    assert not any(row.began.size for row in run_one(study, "uniform", 0).history.rows)
    Store(tmp_path / "out").save(study, "pace", 0, outcome)
    (setup,) = setups_of(Store(tmp_path / "out").runs())
    assert setup.schemes == ["pace (auto)"]
    with pytest.raises(InputError, match="take and deadline need rounds"):
        tiny_study(tmp_path, "training.mode=auto", "training.take=2")
