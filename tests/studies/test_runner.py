"""Scheme × seed over real processes: the same numbers, whatever happens on the way."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

from fedpace.errors import InputError
from fedpace.studies import processes
from fedpace.studies.build import run_one
from fedpace.studies.processes import Order, run_job
from fedpace.studies.runner import is_stored, run_study, study_jobs
from fedpace.studies.store import Job, Store, pack_run, run_key
from fedpace.studies.study import Study
from fedpace.training.callbacks import Callback, Progress

from .test_store import DAMAGES
from .tiny import LONG, files, tiny_study

SCHEMES = ["uniform", "full", "optimal-mean"]
SEEDS = range(3)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return tiny_study(tmp_path_factory.mktemp("setup"))


@pytest.fixture(scope="module")
def reference(study: Study, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = tmp_path_factory.mktemp("reference")
    done = run_study(study, SCHEMES, SEEDS, directory, processes=2)
    assert done == (9, ())
    return files(directory)


class Calls(Callback):
    """Keeps progress and warnings, and calls a function with the progress."""

    def __init__(self, call: Callable[[Progress], object] = id) -> None:
        self.call, self.progress, self.warnings = call, list[Progress](), list[str]()

    def on_progress(self, progress: Progress) -> None:
        self.progress.append(progress)
        self.call(progress)

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def order(study: Study) -> Order:
    return Order.of(study, SCHEMES)


def fill(directory: Path, contents: dict[str, bytes]) -> None:
    (directory / "runs").mkdir(parents=True)
    for name, each in contents.items():
        (directory / "runs" / name).write_bytes(each)


def test_one_process_gives_the_same_bytes_as_two(
    study: Study, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    run_study(study, SCHEMES[::-1], SEEDS[::-1], tmp_path, processes=1)
    assert files(tmp_path) == reference


def test_a_process_of_the_runner_gives_the_same_bytes_as_this_one(
    study: Study, reference: dict[str, bytes]
) -> None:
    with threadpool_limits(1):
        here = pack_run(study, "optimal-mean", 1, run_one(study, "optimal-mean", 1))
    key = run_key(study, "optimal-mean", 1)
    assert [contents for name, contents in reference.items() if name.startswith(key)] == [here]


def test_what_is_stored_is_not_run_again(
    study: Study, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    kept = dict(list(reference.items())[:4])
    fill(tmp_path, kept)
    before = {name: (tmp_path / "runs" / name).stat() for name in kept}
    calls = Calls()
    run_study(study, SCHEMES, SEEDS, tmp_path, callbacks=[calls])
    assert files(tmp_path) == reference
    assert {name: (tmp_path / "runs" / name).stat() for name in kept}.keys() == before.keys()
    for name, stat in before.items():
        assert (tmp_path / "runs" / name).stat().st_ino == stat.st_ino
    assert list(dict.fromkeys(each.done for each in calls.progress)) == [4, 5, 6, 7, 8, 9]


def test_what_is_complete_starts_no_process(
    study: Study, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    fill(tmp_path, reference)
    calls = Calls()
    done = run_study(study, SCHEMES, SEEDS, tmp_path, callbacks=[calls])
    assert done == (9, ())
    assert calls.progress == [Progress(9, 9)]


@pytest.mark.parametrize("name", [each for each in DAMAGES if each != "a folder"])
def test_a_damaged_file_is_said_and_does_not_count_as_stored(
    study: Study, tmp_path: Path, reference: dict[str, bytes], name: str
) -> None:
    fill(tmp_path, reference)
    store, job = Store(tmp_path), Job("uniform", 2)
    said: list[str] = []
    path = store.find(run_key(study, *job))
    assert path is not None
    assert is_stored(store, run_key(study, *job), job, said.append)
    DAMAGES[name](path)
    assert not is_stored(store, run_key(study, *job), job, said.append)
    # One that bears the name of another run is nobody's: it is left alone.
    foreign = name == "renamed to another run"
    assert len(files(tmp_path)) == len(reference) - 1 + foreign
    assert [("removed and uniform, seed 2 is done again" in line) for line in said] == [True] * (
        not foreign
    )


def test_the_run_of_a_damaged_file_is_done_again(
    study: Study, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    fill(tmp_path, reference)
    path = Store(tmp_path).find(run_key(study, "uniform", 2))
    assert path is not None
    DAMAGES["a flipped bit"](path)
    run_study(study, SCHEMES, SEEDS, tmp_path)
    assert files(tmp_path) == reference


def test_a_run_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    impossible = tiny_study(tmp_path, "sampling.max_weight=0.01")
    done = run_study(impossible, ["optimal-mean", "uniform"], SEEDS, tmp_path / "out")
    assert [(each.scheme, each.seed) for each in done.failures] == [
        ("optimal-mean", seed) for seed in SEEDS
    ]
    assert all("max_weight must" in each.reason for each in done.failures)
    assert done.stored == len(files(tmp_path / "out")) == 3


def test_a_bug_in_a_run_is_told_with_its_place(study: Study) -> None:
    answer = run_job(order(study), Job("uniform", -1))
    assert answer.problem.startswith("ValueError: ")
    assert ".py" in answer.problem.rpartition(" (")[2]
    assert not answer.contents


def test_a_worker_of_another_version_refuses(study: Study) -> None:
    answer = run_job(Order("0.0.0", order(study).study, {}), Job("uniform", 0))
    assert "this is 0.0.0; install the same" in answer.problem


def test_linear_algebra_of_a_run_keeps_to_one_thread(study: Study) -> None:
    with threadpool_limits(2):
        run_job(order(study), Job("uniform", 0))
        assert {pool["num_threads"] for pool in threadpool_info()} == {1}


def kill_one_child() -> None:
    child = multiprocessing.active_children()[0]
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)


def test_the_run_of_a_killed_process_begins_again(
    study: Study, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    calls = Calls(lambda now: kill_one_child() if now.done == 2 else None)
    done = run_study(study, SCHEMES, SEEDS, tmp_path, processes=2, callbacks=[calls])
    assert done == (9, ())
    assert files(tmp_path) == reference
    assert len(calls.warnings) == 1
    assert "its process was killed by signal 9; it begins again" in calls.warnings[0]


def test_it_gives_up_where_processes_cannot_live(study: Study, tmp_path: Path) -> None:
    over = threading.Event()

    def kill_all() -> None:
        while not over.wait(0.02):
            for child in multiprocessing.active_children():
                child.kill()

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        done = run_study(study, SCHEMES, range(5), tmp_path, processes=2)
    finally:
        over.set()
        killer.join()
    assert done.stored == 0
    assert len(done.failures) == 15
    assert any("killed by signal 9, 3 times in all" in each.reason for each in done.failures)
    assert "processes keep dying" in done.failures[-1].reason


OWN = """
import os
import signal

from fedpace import WithReplacement

def squared(profile, k, *, max_weight=None):
    q = profile.weights ** 2
    return WithReplacement(q / q.sum(), k, profile.weights)

def deadly(profile, k, *, max_weight=None):
    os.kill(os.getpid(), signal.SIGKILL)

def broken(profile, k, *, max_weight=None):
    return profile.nothing
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the path of a user's file, relative to where one is."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "mine/own.py"


def test_a_run_has_a_bounded_number_of_attempts(study: Study, tmp_path: Path, own: str) -> None:
    calls = Calls()
    schemes = [f"{own}:deadly", "uniform"]
    done = run_study(study, schemes, [0], tmp_path / "out", processes=1, callbacks=[calls])
    (failure,) = done.failures
    assert "its process was killed by signal 9, 3 times in all" in failure.reason
    assert [("it begins again" in line) for line in calls.warnings] == [True, True]
    assert done.stored == 1


def test_a_scheme_of_a_users_own_file_runs_in_processes(
    study: Study, tmp_path: Path, own: str
) -> None:
    name = f"{own}:squared"
    assert run_study(study, [name], [0], tmp_path / "out", processes=1) == (1, ())
    with threadpool_limits(1):
        here = pack_run(study, name, 0, run_one(study, name, 0))
    assert list(files(tmp_path / "out").values()) == [here]
    (run,) = Store(tmp_path / "out").runs()
    assert run.scheme == name


def test_a_file_that_is_edited_during_a_run_counts_as_it_was_at_the_start(
    study: Study, tmp_path: Path, own: str
) -> None:
    out, name, before = tmp_path / "out", f"{own}:squared", Path(own).read_text()

    def edit(now: Progress) -> None:
        if now.done == 1:
            Path(own).write_text(before.replace("** 2", "** 3"), encoding="utf-8")

    calls = Calls(edit)
    keys = study_jobs(study, [name], SEEDS).keys
    done = run_study(study, [name], SEEDS, out, processes=1, callbacks=[calls])
    assert done == (3, ())
    (line,) = calls.warnings
    assert "own.py was changed during the study" in line
    assert Store(out).keys() == set(keys.values())
    Path(own).write_text(before, encoding="utf-8")
    calls = Calls()
    assert run_study(study, [name], SEEDS, out, callbacks=[calls]) == (3, ())
    assert calls.progress == [Progress(3, 3)]
    assert not calls.warnings
    with threadpool_limits(1):
        here = pack_run(study, name, 2, run_one(study, name, 2))
    assert here in files(out).values()


def test_a_users_file_imports_its_neighbours_in_processes(
    study: Study, tmp_path: Path, own: str
) -> None:
    Path(own).write_text("from helpers import squared\n", encoding="utf-8")
    Path(own).with_name("helpers.py").write_text(OWN, encoding="utf-8")
    assert run_study(study, [f"{own}:squared"], [0], tmp_path / "out", processes=1) == (1, ())


def test_a_users_file_that_is_not_python_is_refused_before_any_run(
    study: Study, tmp_path: Path, own: str
) -> None:
    Path(own).write_text("def mine(\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"schemes must be .* mine/own.py, line 1: SyntaxError"):
        run_study(study, [f"{own}:mine"], [0], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_mistake_in_a_users_scheme_is_told_with_its_place(
    study: Study, tmp_path: Path, own: str
) -> None:
    done = run_study(study, [f"{own}:broken"], [0], tmp_path / "out", processes=1)
    (failure,) = done.failures
    assert failure.reason.startswith("AttributeError: 'Profile' object has no attribute 'nothing'")
    assert failure.reason.endswith("(own.py:15)")


def test_an_interruption_ends_the_processes_and_keeps_what_is_stored(
    tmp_path: Path,
) -> None:
    def interrupt(now: Progress) -> None:
        if now.done == 2:
            raise KeyboardInterrupt

    long = tiny_study(tmp_path, *LONG)
    with pytest.raises(KeyboardInterrupt):
        run_study(long, SCHEMES, SEEDS, tmp_path / "out", callbacks=[Calls(interrupt)])
    assert multiprocessing.active_children() == []
    assert len(files(tmp_path / "out")) == 2


def test_what_somebody_else_stores_meanwhile_is_not_run_again(
    study: Study, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    def store_the_rest(now: Progress) -> None:
        if now.done == 1:
            for name, contents in reference.items():
                (tmp_path / "runs" / name).write_bytes(contents)

    calls = Calls(store_the_rest)
    done = run_study(study, SCHEMES, SEEDS, tmp_path, processes=1, callbacks=[calls])
    assert done == (9, ())
    assert files(tmp_path) == reference
    assert calls.progress[-1] == (9, 9, 0)


def test_time_left_is_told_after_the_first_run(study: Study, tmp_path: Path) -> None:
    calls = Calls()
    run_study(study, ["uniform"], range(4), tmp_path, processes=1, callbacks=[calls])
    left = [each.seconds_left for each in calls.progress]
    assert left[0] is None
    assert all(each is not None and each > 0 for each in left[1:-1])
    assert left[-1] == 0


def test_progress_is_reported_while_no_run_finishes(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "IDLE", 0.01)
    calls = Calls()
    run_study(study, ["uniform"], [0], tmp_path, callbacks=[calls])
    assert [each.done for each in calls.progress].count(0) > 1


def test_one_of_each_scheme_comes_first_and_then_the_longest(study: Study) -> None:
    jobs = list(study_jobs(study, SCHEMES, [5, 6, 7]).keys)
    assert [str(job) for job in jobs[:5]] == [
        "full, seed 5", "uniform, seed 5", "optimal-mean, seed 5", "full, seed 6", "full, seed 7",
    ]  # fmt: skip
    assert len(set(jobs)) == 9


BAD: dict[str, Callable[[Study, Path], object]] = {
    "did you mean 'uniform'": lambda study, out: run_study(study, ["unifrom"], [0], out),
    "0 schemes": lambda study, out: run_study(study, [], [0], out),
    "0 seeds": lambda study, out: run_study(study, ["full"], [], out),
    "seeds from -1": lambda study, out: run_study(study, ["full"], [0, -1], out),
    "processes must be": lambda study, out: run_study(study, ["full"], [0], out, processes=0),
    "No such file": lambda study, out: run_study(study, ["none.py:mine"], [0], out),
    "schemes 'math:pi' must define design, got float": lambda study, out: run_study(
        study, ["math:pi"], [0], out
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arguments_are_refused_before_anything_is_written(
    study: Study, tmp_path: Path, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        BAD[message](study, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change", ["training.schedule=fast", "devices.times=warp:9", "training.server=admiral"]
)
def test_a_setting_that_no_run_can_use_is_refused_before_any_run(
    tmp_path: Path, change: str
) -> None:
    with pytest.raises(InputError):
        run_study(tiny_study(tmp_path, change), ["uniform"], [0], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_diverging_run_is_stored_as_such_without_warnings(tmp_path: Path) -> None:
    wild = tiny_study(tmp_path, "training.schedule=constant:1e308", "stop.loss=none")
    answer = run_job(order(wild), Job("uniform", 0))
    assert not answer.problem
    path = Store(tmp_path).save_packed(run_key(wild, "uniform", 0), answer.contents)
    run = Store(tmp_path).load(path)
    assert run.ended == "diverged"
    assert not np.isfinite(run.history.rows[-1].loss)
