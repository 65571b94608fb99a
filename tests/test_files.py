"""A file is written whole or not at all."""

import io
import os
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedpace import InputError
from fedpace.files import load_arrays, writable, write_text, write_through, write_whole


def test_text_is_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_text(tmp_path / "q.csv", "é\n")
    assert os.listdir(tmp_path) == ["q.csv"]
    assert (tmp_path / "q.csv").read_bytes() == "é\n".encode()


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()])
def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    file = tmp_path / "q.csv"
    file.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half of the n")
        raise error

    with pytest.raises(type(error)):
        write_whole(file, fail)
    assert os.listdir(tmp_path) == ["q.csv"]
    assert file.read_text() == "old"


def test_a_full_disk_is_an_input_error_that_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "q.csv"

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"q\.csv: cannot be written: No space left on device; "):
        write_whole(file, fail)
    assert os.listdir(tmp_path) == []


def test_the_writer_sees_the_ending_of_the_file(tmp_path: Path) -> None:
    seen = []
    write_whole(tmp_path / "q.png", lambda temporary: seen.append(temporary.suffix))
    assert seen == [".png"]


@pytest.mark.parametrize("name", ["no-dot", ".hidden", "two.dots.csv", "é 手.csv", "n" * 250])
def test_any_legal_name_will_do(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "text")
    assert os.listdir(tmp_path) == [name]


def test_a_name_too_long_for_the_system_is_an_input_error(tmp_path: Path) -> None:
    file = tmp_path / ("n" * 300)
    with pytest.raises(InputError, match=r"n{300}"):
        writable(file)
    with pytest.raises(InputError, match=r"n{300}"):
        write_text(file, "text")
    assert os.listdir(tmp_path) == []


def test_a_directory_is_not_writable(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory; give the name of a file"):
        writable(tmp_path)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no directory .*/no; create it first"):
        writable(tmp_path / "no" / "q.csv")


def test_a_writable_path_is_returned_and_not_touched(tmp_path: Path) -> None:
    assert writable(tmp_path / "q.csv") == tmp_path / "q.csv"
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links")
def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "target.csv"
    target.write_text("old")
    link = tmp_path / "q.csv"
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert os.listdir(tmp_path / "elsewhere") == ["target.csv"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_link_in_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("of somebody else")
    (tmp_path / ".run.npz.part").symlink_to(other)
    write_through(tmp_path / "run.npz", b"a run")
    assert (tmp_path / "run.npz").read_bytes() == b"a run"
    assert other.read_text() == "of somebody else"


def test_what_is_not_an_ordinary_file_is_refused_and_kept(tmp_path: Path) -> None:
    # A device such as /dev/stdout would be replaced by an ordinary file, for the whole system.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="pipe"):
        write_text(pipe, "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


WRITE_FOREVER = """
import itertools, pathlib, sys
from fedpace.files import write_text
for i in itertools.count():
    write_text(pathlib.Path("q.csv"), str(i % 10) * 3_000_000)
    if i == 0:
        print("started", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_writer_never_leaves_half_a_file(tmp_path: Path) -> None:
    for pause in (0.0, 0.003, 0.011, 0.05):
        with subprocess.Popen(
            [sys.executable, "-c", WRITE_FOREVER], cwd=tmp_path, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=pause)
            process.send_signal(signal.SIGKILL)
        text = (tmp_path / "q.csv").read_text()
        assert len(text) == 3_000_000
        assert len(set(text)) == 1


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links")
def test_a_link_in_a_folder_of_runs_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "other", tmp_path / "study.json"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new", follow=False)
    assert (link.is_symlink(), link.read_text(), target.read_text()) == (False, "new", "old")


def test_a_file_that_unpacks_to_a_gigabyte_is_refused_unread() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file, file.open("x.npy", "w") as x:
        for _ in range(300):
            x.write(bytes(2**20))
    with pytest.raises(ValueError, match="unpacks to 314,572,800 bytes"):
        load_arrays(buffer.getvalue())
