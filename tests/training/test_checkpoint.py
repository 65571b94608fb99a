"""A run that is ended anywhere goes on from its last finished round."""

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedpace.errors import InputError
from fedpace.samplers.build import Pilots, WarmUp, sampler_for
from fedpace.sampling.design import WithReplacement
from fedpace.seeds import Seeds
from fedpace.servers.average import Adam, Average, Yogi
from fedpace.servers.memory import Memory
from fedpace.training.callbacks import RunInfo
from fedpace.training.checkpoint import DIGEST, Checkpoint, State
from fedpace.training.history import Row
from fedpace.training.sampler import BaseSampler
from fedpace.training.stopping import Schedule, Stop, inverse
from fedpace.training.synchronous import SynchronousTraining
from fedpace.training.train import train
from fedpace.training.training import Outcome

from .fakes import EndedError, Fixed, assert_same_outcome, small_simulator

ABOUT = {"run": 1}
STOP = Stop(rounds=12)
SAMPLERS: dict[str, Callable[[], BaseSampler]] = {
    "counts": lambda: sampler_for("uniform", 3, learn=WarmUp(3)),
    "warm-up and refresh": lambda: sampler_for("optimal-mean", 3, learn=WarmUp(3), refresh=4),
    "pace": lambda: sampler_for("pace", 2, refresh=4),
    "pilots": lambda: sampler_for("optimal-mean", 3, learn=Pilots([1.0, 0.9, 0.8], 4)),
    "pilots and refresh": lambda: sampler_for(
        "statistical", 3, learn=Pilots([1.0, 0.9, 0.8], 4), refresh=3
    ),
}
SERVERS: dict[str, Any] = {
    "average": Average(),
    "adam": Adam(0.1),
    "yogi": Yogi(0.1),
    "memory": Memory(),
}


class Mortal(Checkpoint):
    """A checkpoint whose process ends after so many rounds."""

    lives: int = 10**9

    def on_row(self, run: RunInfo, row: Row) -> None:
        super().on_row(run, row)
        self.flush()
        self.lives -= 1
        if self.lives == 0:
            raise EndedError


def run(
    sampler: str,
    journal: Checkpoint | None,
    *,
    server: str = "average",
    stop: Stop = STOP,
    schedule: Schedule | None = None,
    times_known: bool = True,
) -> Outcome:
    return train(
        small_simulator(times_known=times_known),
        SAMPLERS[sampler](),
        schedule=schedule or inverse(0.3),
        stop=stop,
        seeds=Seeds(0),
        server=SERVERS[server],
        callbacks=[] if journal is None else [journal],
    )


def run_in_pieces(path: Path, sampler: str, lives: int, **more: Any) -> Outcome:
    """Begin again and again, until the run is finished."""
    for _ in range(100):
        journal = Mortal(path, ABOUT)
        journal.lives = lives
        try:
            return run(sampler, journal, **more)
        except EndedError:
            continue
    raise AssertionError("never finished")


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("lives", [1, 2, 5])
def test_a_run_ended_every_few_rounds_comes_to_the_same(
    sampler: str, lives: int, tmp_path: Path
) -> None:
    outcome = run_in_pieces(tmp_path / "checkpoint.npz", sampler, lives)
    assert_same_outcome(outcome, run(sampler, None))
    rounds = [row.round for row in outcome.history.rows if row.phase == "train"]
    assert rounds == list(range(rounds[0], rounds[0] + len(rounds)))


@pytest.mark.parametrize("server", ["adam", "yogi", "memory"])
@pytest.mark.parametrize("sampler", ["warm-up and refresh", "pilots", "pace"])
def test_a_servers_memory_is_kept(server: str, sampler: str, tmp_path: Path) -> None:
    outcome = run_in_pieces(tmp_path / "checkpoint.npz", sampler, 2, server=server)
    assert_same_outcome(outcome, run(sampler, None, server=server))


@pytest.mark.parametrize("sampler", ["pilots and refresh", "pace"])
def test_times_that_are_learned_are_kept(sampler: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    outcome = run_in_pieces(path, sampler, 3, times_known=False)
    assert_same_outcome(outcome, run(sampler, None, times_known=False))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_finished_run_is_not_run_again(sampler: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    first = run(sampler, Checkpoint(path, ABOUT))
    journal = Mortal(path, ABOUT)
    journal.lives = 1
    assert_same_outcome(first, run(sampler, journal))


# Endings at the border between two phases.
ENDINGS: dict[str, dict[str, Any]] = {
    "time is up in a pilot": {"stop": Stop(seconds=5.0)},
    "the better pilot reaches the target": {"stop": Stop(loss=1.2, rounds=50)},
    "no pilot survives": {"schedule": lambda _: 1e300},
    "one pilot diverges": {"schedule": lambda r: 0.3 if r < 3 else 1e3},
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("lives", [1, 3, 10**9])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow is tested with the run
def test_an_ending_between_two_phases_is_kept(ending: str, lives: int, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    outcome = run_in_pieces(path, "pilots", lives, **ENDINGS[ending])
    assert_same_outcome(outcome, run("pilots", None, **ENDINGS[ending]))
    again = Mortal(path, ABOUT)
    again.lives = 1
    assert_same_outcome(run("pilots", again, **ENDINGS[ending]), outcome)


def test_a_run_whose_time_was_up_goes_on_in_its_pilot_if_it_is_given_more(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    short = run("pilots", Checkpoint(path, ABOUT), stop=Stop(seconds=5.0, rounds=12))
    assert short.state.ended == "seconds"
    assert short.state.phase == "pilot-uniform"
    longer = run("pilots", Checkpoint(path, ABOUT))
    whole = run("pilots", None)
    assert longer.state.ended == "rounds"
    np.testing.assert_array_equal(longer.state.parameters, whole.state.parameters)


def test_notes_are_kept_with_the_next_round(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    journal = Checkpoint(path, ABOUT)
    journal.notes["seen"] = [1, 2]
    run("counts", journal)
    assert Checkpoint(path, ABOUT).notes == {"seen": [1, 2]}


def test_refuses_the_checkpoint_of_another_run(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    run("counts", Checkpoint(path, ABOUT))
    with pytest.raises(InputError, match="another run"):
        Checkpoint(path, {"run": 2})


class Pair(NamedTuple):
    one: int
    two: int


class Objects(Fixed):
    """A sampler whose state cannot be stored."""

    def init(self, n: int) -> Any:
        return Pair(n, 0)

    def observe(self, state: Any, row: Row) -> Any:
        return state


def test_a_state_that_cannot_be_stored_is_refused_before_the_first_round(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    sampler = Objects(WithReplacement(np.full(6, 1 / 6), 3, np.full(6, 1 / 6)))
    with pytest.raises(InputError, match=r"state must consist of .*, got Pair; store"):
        SynchronousTraining(
            small_simulator(), sampler, schedule=inverse(0.3), stop=STOP, seeds=Seeds(0),
            callbacks=[Checkpoint(path, ABOUT)],
        )  # fmt: skip
    assert not path.exists()


# Damage.


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "checkpoint.npz"
    run("pilots", Checkpoint(path, ABOUT))
    return path.read_bytes()


def problem(path: Path, contents: bytes) -> str:
    """Return what is said of a file; empty if it can be read."""
    path.write_bytes(contents)
    try:
        Checkpoint(path, ABOUT)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04 nothing", b"\x93NUMPY", b"{}", b"\0" * 99])
def test_says_that_a_file_is_no_checkpoint(contents: bytes, tmp_path: Path) -> None:
    said = problem(tmp_path / "checkpoint.npz", contents)
    assert "cannot be read as a checkpoint: " in said
    assert said.endswith("; remove it to start again")
    assert "\n" not in said


def flipped(contents: bytes, place: int, bit: int) -> bytes:
    return contents[:place] + bytes([contents[place] ^ 1 << bit]) + contents[place + 1 :]


def test_a_flipped_or_lost_byte_is_one_line(whole: bytes, tmp_path: Path) -> None:
    path, rng = tmp_path / "checkpoint.npz", np.random.default_rng(0)
    places = {*rng.integers(len(whole), size=120).tolist(), *range(len(whole) - 120, len(whole))}
    said = [problem(path, flipped(whole, place, place % 8)) for place in sorted(places)]
    said += [problem(path, whole[:place]) for place in sorted(places)[::10]]
    assert all("\n" not in each for each in said)
    assert all("does not match its checksum" in each for each in said)


def test_a_flipped_bit_in_the_directory_of_the_zip_is_one_line(
    whole: bytes, tmp_path: Path
) -> None:
    # Whoever can write the file can write its checksum: what is read must not matter.
    path, contents = tmp_path / "checkpoint.npz", whole[:-DIGEST]
    first = contents.index(b"PK\x01\x02")  # where the directory begins
    places = [*range(first, first + 200), *range(len(contents) - 100, len(contents))]
    for place in places:
        for bit in range(8):
            damaged = flipped(contents, place, bit)
            assert "\n" not in problem(path, damaged + hashlib.sha256(damaged).digest())


@pytest.mark.parametrize(
    "changes",
    [
        {"about": np.array("[]")},
        {"about": np.array("no JSON")},
        {"about": np.array('{"about": {"run": 1}, "notes": "text", "rng": {}}')},
        {"about": np.arange(3)},
        {"about": None},
        {"state-structure": np.array("[1, 2]")},
        {"state-structure": np.array('{"dict": 3}')},
        {"state-structure": np.array('{"dict": {"mood": 3}}')},
        {"state-structure": np.array('{"array": "array-99"}')},
        {"state-structure": None},
        {"state-array-0": None},
        {"rows-phase": None},
        {"rows-offsets": None},
        {"rows-loss": np.zeros(1)},
        {"rows-clients": np.array(3)},
    ],
    ids=str,
)
def test_a_checkpoint_of_another_form_is_one_line(
    changes: dict[str, Any], whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.npz"
    path.write_bytes(whole)
    with np.load(path) as file:
        arrays = dict(file) | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    contents = path.read_bytes()
    said = problem(path, contents + hashlib.sha256(contents).digest())
    assert "cannot be read as a checkpoint" in said
    assert "\n" not in said


def test_a_folder_in_its_place_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read as a checkpoint: .*Is a directory"):
        Checkpoint(tmp_path, ABOUT)


def test_nothing_in_a_checkpoint_is_pickled(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    path.write_bytes(whole)
    with np.load(path, allow_pickle=False) as file:
        assert json.loads(str(file["about"]))["about"] == ABOUT
        assert not any(array.dtype.hasobject for array in file.values())


def test_is_gone_when_it_is_not_needed_any_more(tmp_path: Path) -> None:
    journal = Checkpoint(tmp_path / "checkpoint.npz", ABOUT)
    run("counts", journal)
    journal.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_last_checkpoint(small_disk: Path) -> None:
    path = small_disk / "checkpoint.npz"
    run("counts", Checkpoint(path, ABOUT))
    before = path.read_bytes()
    journal = Checkpoint(path, ABOUT)
    row, rng = run("counts", None).history.rows[-1], np.random.default_rng(0)
    large = RunInfo("", 0, State(np.zeros(10**6), 13, 1.0), rng)

    def write() -> None:
        journal.on_row(large, row)
        journal.flush()

    with pytest.raises(InputError, match="No space left"):
        write()
    assert path.read_bytes() == before
    assert [each.name for each in small_disk.iterdir() if each.is_file()] == ["checkpoint.npz"]


def test_a_state_of_another_type_is_named_as_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    journal = Mortal(path, ABOUT)
    journal.lives = 4
    with pytest.raises(EndedError):
        run("pace", journal, server="memory")
    with np.load(io.BytesIO(path.read_bytes()[:-DIGEST])) as file:
        arrays = dict(file)
    for name, array in arrays.items():
        if name.startswith("state-array") and array.dtype.kind == "f":
            arrays[name] = array.astype(str)
    np.savez(path, **arrays)
    contents = path.read_bytes()
    path.write_bytes(contents + hashlib.sha256(contents).digest())
    with pytest.raises(InputError, match="checkpoint must hold the state of this run, got"):
        run("pace", Checkpoint(path, ABOUT), server="memory")


@pytest.mark.parametrize("count", ["asked", "answered"])
def test_a_count_below_zero_is_one_line(count: str, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    path.write_bytes(whole)
    with np.load(path) as file:
        arrays = dict(file)
    places = json.loads(str(arrays["state-structure"]))["dict"]
    arrays[f"state-{places[count]['array']}"][0] = -1
    np.savez(path, **arrays)
    contents = path.read_bytes()
    said = problem(path, contents + hashlib.sha256(contents).digest())
    assert "counts of clients must not be negative; remove it" in said
