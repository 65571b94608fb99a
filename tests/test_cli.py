"""The command line as its user meets it: real files, real exit statuses, real streams."""

import contextlib
import csv
import io
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fedpace
from fedpace.cli import main
from fedpace.clients_file import read_clients
from fedpace.sampling.plan import usual_ks

HEADER = "client,samples,time,grad_norm\n"
GOOD = HEADER + "ada,30,1.5,2\nbob,50,0.5,1\ncyd,20,4,3\n"


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


def run(*args: object) -> Outcome:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["fedpace", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return Outcome(ended.value.code, out.getvalue(), err.getvalue())


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "fedpace", *map(str, args)]


def spawn(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    env = os.environ | {"PYTHONIOENCODING": "utf-8"} | options.pop("env", {})
    return subprocess.run(
        command(*args), capture_output=True, text=True, encoding="utf-8", env=env, **options
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def assert_refused(outcome: Outcome, *fragments: str) -> None:
    assert outcome.status == 2
    assert outcome.out == ""
    assert outcome.err.startswith("fedpace: ")
    assert outcome.err.count("\n") == 1
    assert outcome.err.endswith("\n")
    for fragment in fragments:
        assert fragment in outcome.err


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def numbers_in(text: str) -> list[str]:
    return re.findall(r"(?<![\w.-])\d[\d,]*\.?\d*(?:e[+-]\d+)?(?![\w.-])", text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a good clients.csv in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "clients.csv").write_text(GOOD)
    return tmp_path


@pytest.fixture
def fleet(folder: Path) -> Path:
    """A working directory with a realistic clients.csv."""
    assert run("example", "clients.csv", "--force", "--clients", 60).status == 0
    return folder


# Bad files


BAD_FILES = {
    "missing time, near miss": (
        "client,samples,tme,grad_norm\na,1,2,3\n",
        ["column 'time' is missing", "'tme'"],
    ),
    "missing grad_norm, near miss": (
        "client,samples,time,gradnorm\na,1,2,3\n",
        ["column 'grad_norm' is missing", "'gradnorm'"],
    ),
    "missing samples, near miss": (
        "client,sample,time,grad_norm\na,1,2,3\n",
        ["column 'samples' (or 'weight') is missing", "'sample'"],
    ),
    "missing, nothing like it": (
        "client,samples,grad_norm\na,1,3\n",
        ["column 'time' is missing", "the file needs"],
    ),
    "no header": ("a,1,2,3\nb,2,3,4\n", ["column 'samples' (or 'weight') is missing", "'a'"]),
    "empty": ("", ["is empty", "'samples' (or 'weight'), 'time' and 'grad_norm'"]),
    "only a byte order mark": ("\ufeff", ["is empty"]),
    "only blank lines": ("\n  \n\n", ["is empty"]),
    "header only": (HEADER, ["no clients", "one row per client"]),
    "nan": (HEADER + "a,1,2,3\nb,1,nan,3\n", ["row 3", "'time'", "'nan'", "finite", "; "]),
    "infinite": (HEADER + "a,1,2,3\nb,1,2,inf\n", ["row 3", "'grad_norm'", "'inf'", "finite"]),
    "too large": (HEADER + "a,1,2,3\nb,1e400,2,1\n", ["row 3", "'samples'", "'1e400'", "finite"]),
    "negative time": (HEADER + "a,1,-2,3\n", ["row 2", "'time'", "'-2'", "negative", "seconds"]),
    "negative norm": (HEADER + "a,1,2,-3\n", ["row 2", "'grad_norm'", "'-3'", "negative"]),
    "zero time": (HEADER + "a,1,0,3\n", ["row 2", "'time'", "'0'", "zero", "measure"]),
    "zero samples": (HEADER + "a,1,1,1\nb,0,1,3\n", ["row 3", "'samples'", "'0'", "zero", "drop"]),
    "zero weight": ("weight,time,grad_norm\n1,1,1\n0.0,1,1\n", ["row 3", "'weight'", "'0.0'"]),
    "underflow to zero": (HEADER + "a,1,1e-400,3\n", ["row 2", "'time'", "'1e-400'", "zero"]),
    "text": (HEADER + "a,1,2,3\nb,1,fast,3\n", ["row 3", "'time'", "'fast'", "not a number"]),
    "empty cell": (HEADER + "a,1,,3\n", ["row 2", "'time'", "''", "not a number"]),
    "unit": (HEADER + "a,1,2 s,3\n", ["row 2", "'time'", "'2 s'", "not a number"]),
    "decimal comma": (
        HEADER.replace(",", ";") + "a;1;2,5;3\n",
        ["row 2", "'time'", "'2,5'", "with a point"],
    ),
    "quoted decimal comma": (HEADER + 'a,1,"2,5",3\n', ["row 2", "'time'", "'2,5'", "point"]),
    "decimal comma that splits": (HEADER + "a,1,2,5,3\n", ["row 2", "5 values", "4"]),
    "thousands separator": (
        HEADER + 'a,"1,000",2,3\n',
        ["row 2", "'samples'", "'1,000'", "thousands"],
    ),
    "duplicate clients": (
        HEADER + "a,1,2,3\nb,1,2,3\na,1,2,3\n",
        ["row 4", "'client'", "'a'", "row 2", "one row"],
    ),
    "nameless client": (HEADER + "a,1,2,3\n ,1,2,3\n", ["row 3", "'client'", "name"]),
    "weights sum to 0.8": (
        "weight,time,grad_norm\n0.4,1,1\n0.4,2,1\n",
        ["weight", "sum to 1", "0.8", "'samples'"],
    ),
    "weights in percent": ("weight,time,grad_norm\n40,1,1\n60,2,1\n", ["weight", "100", "sum"]),
    "samples and weight": (
        "samples,weight,time,grad_norm\n1,1,1,1\n",
        ["'samples'", "'weight'", "keep one"],
    ),
    "column twice": ("samples,time,time,grad_norm\n1,1,1,1\n", ["'time'", "twice", "keep one"]),
    "column twice, case": ("samples,time,Time,grad_norm\n1,1,1,1\n", ["'time'", "twice"]),
    "short row": (HEADER + "a,1,2,3\nb,1,2\n", ["row 3", "3 values", "4", "per column"]),
    "long row": (HEADER + "a,1,2,3\nb,1,2,3,4\n", ["row 3", "5 values", "4", "per column"]),
    "row after a name of two lines": (
        HEADER + '"a\nb",1,2,3\nc,x,3,4\n',
        ["row 4", "'samples'", "'x'"],
    ),
    "unbalanced quote": (HEADER + '"a,1,2,3\nb,1,2,3\n', ["row", "quote"]),
    "text after a quote": (HEADER + '"a"b,1,2,3\n', ["row 2"]),
    "times too far apart": (
        HEADER + "a,1,1e-20,1\nb,1,1e20,1\n",
        ["row 2", "row 3", "'time'", "1e-20", "1e+20", "unit"],
    ),
    "time beyond computing": (HEADER + "a,1,1,1\nb,1,1e150,1\n", ["row 3", "'time'", "1e+150"]),
}


@pytest.mark.parametrize(("text", "fragments"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_gets_one_line_that_says_where_and_what_to_do(
    folder: Path, text: str, fragments: list[str]
) -> None:
    (folder / "bad.csv").write_text(text, encoding="utf-8")
    before = contents(folder)
    outcome = run("solve", "bad.csv", "-o", "q.csv", "--plot", "q.png")
    assert_refused(outcome, "bad.csv: ", *fragments)
    assert ";" in outcome.err  # the remedy follows it
    assert contents(folder) == before


BAD_BYTES = {
    "latin-1": (GOOD.replace("ada", "adé").encode("latin-1"), ["0xe9", "offset", "UTF-8"]),
    "utf-16": (GOOD.encode("utf-16"), ["0xff", "UTF-8"]),
    "utf-16 without its mark": (GOOD.encode("utf-16-le"), ["UTF-8"]),
    "a picture": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", ["0x89", "UTF-8"]),
    "NUL in a name": (GOOD.replace("ada", "a\0a").encode(), ["row 2", "NUL"]),
    "NUL in a number": (GOOD.replace("30", "3\0").encode(), ["row 2", "NUL"]),
    "NUL in the header": (GOOD.replace("time", "ti\0me").encode(), ["NUL"]),
}


@pytest.mark.parametrize(("data", "fragments"), BAD_BYTES.values(), ids=BAD_BYTES.keys())
def test_a_file_that_is_not_utf8_text_is_refused(
    folder: Path, data: bytes, fragments: list[str]
) -> None:
    (folder / "bad.csv").write_bytes(data)
    before = contents(folder)
    outcome = run("plan", "bad.csv", "-o", "plan.csv")
    assert_refused(outcome, "bad.csv: ")
    assert "\0" not in outcome.err
    assert any(fragment in outcome.err for fragment in fragments)
    assert contents(folder) == before


def test_control_characters_of_a_cell_do_not_reach_the_terminal(folder: Path) -> None:
    (folder / "bad.csv").write_text(HEADER + "a,\x1b[31m7,2,3\n")
    outcome = run("solve", "bad.csv")
    assert_refused(outcome, "row 2", "'samples'", "[31m7")
    assert "\x1b" not in outcome.err


def test_a_missing_column_among_thousands_gets_a_short_line(folder: Path) -> None:
    width = 3000
    header = ",".join(f"x{i}" for i in range(width))
    (folder / "bad.csv").write_text(header + "\n" + ",".join("1" * width) + "\n")
    outcome = run("solve", "bad.csv")
    assert_refused(outcome, "bad.csv", "'samples' (or 'weight') is missing")
    assert len(outcome.err) < 1000


def test_a_missing_column_without_near_miss_names_the_columns_needed(folder: Path) -> None:
    (folder / "bad.csv").write_text("n,seconds,g\n1,2,3\n")
    outcome = run("solve", "bad.csv")
    assert_refused(outcome, "'samples' (or 'weight') is missing", "'n', 'seconds', 'g'")
    assert "use one of" not in outcome.err  # those are the names that will not do
    assert "the file needs" in outcome.err


def test_the_remedy_for_text_is_a_number_and_not_to_drop_the_client(folder: Path) -> None:
    (folder / "bad.csv").write_text(HEADER + "a,many,2,3\n")
    outcome = run("solve", "bad.csv")
    assert_refused(outcome, "'many' is not a number")
    assert "drop" not in outcome.err


def test_weights_that_do_not_sum_to_1_get_a_remedy_for_the_file(folder: Path) -> None:
    (folder / "bad.csv").write_text("weight,time,grad_norm\n0.4,1,1\n0.4,2,1\n")
    outcome = run("solve", "bad.csv")
    assert_refused(outcome, "column 'weight'", "0.8")
    assert "Profile" not in outcome.err


def test_a_missing_file_gets_the_command_that_writes_one(folder: Path) -> None:
    outcome = run("solve", "clinets.csv")
    assert_refused(outcome, "clinets.csv: no such file", "fedpace example clinets.csv")


def test_a_directory_instead_of_a_file_is_refused(folder: Path) -> None:
    assert_refused(run("solve", folder), f"{folder}: ", "irectory", "CSV file")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux's /proc")
def test_a_file_that_breaks_while_read_is_refused() -> None:
    assert_refused(run("solve", "/proc/self/mem"), "/proc/self/mem", "cannot be read")


AS_NOBODY = """
import os, sys
from fedpace.cli import main
if os.geteuid() == 0:  # root may read and write everything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.argv[0] = "fedpace"
main()
"""


@pytest.mark.parametrize(
    ("args", "fragments"),
    [
        (["solve", "secret.csv"], ["secret.csv", "read"]),
        (["solve", "clients.csv", "-o", "locked/q.csv"], ["locked/q.csv", "ermission"]),
        (["solve", "clients.csv", "-o", "old.csv"], ["old.csv", "ermission"]),
        (["plan", "clients.csv", "--plot", "locked/q.png"], ["locked/q.png", "ermission"]),
        (["example", "locked/new.csv"], ["locked/new.csv", "ermission"]),
    ],
)
def test_what_may_not_be_read_or_written_is_refused(
    folder: Path, args: list[str], fragments: list[str]
) -> None:
    (folder / "secret.csv").write_text(GOOD)
    (folder / "secret.csv").chmod(0)
    (folder / "old.csv").write_text("old")
    (folder / "old.csv").chmod(0o444)
    (folder / "locked").mkdir(0o555)
    folder.chmod(0o755)
    ended = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *args], capture_output=True, text=True, cwd=folder
    )
    assert_refused(Outcome(ended.returncode, ended.stdout, ended.stderr), *fragments)
    assert (folder / "old.csv").read_text() == "old"
    assert list((folder / "locked").iterdir()) == []


# Bad options


BAD_OPTIONS: list[tuple[list[str], list[str]]] = [
    (["solve", "clients.csv", "-k", "0"], ["-k must be at least 1", "got 0"]),
    (["solve", "clients.csv", "-k", "-3"], ["-k must be at least 1", "got -3"]),
    (["solve", "clients.csv", "-k", "ten"], ["-k", "'ten'", "integer"]),
    (["solve", "clients.csv", "-k", "2.5"], ["-k", "'2.5'", "integer"]),
    (["solve", "clients.csv", "-k", "9" * 400], ["-k"]),
    (["plan", "clients.csv", "-k", "0"], ["-k must be at least 1", "got 0"]),
    (["solve", "clients.csv", "--scheme", "unifrom"], ["'unifrom'", "did you mean 'uniform'?"]),
    (["solve", "clients.csv", "--scheme", "max"], ["'max'", "did you mean 'optimal-max'?"]),
    (["solve", "clients.csv", "--scheme", "zzz"], ["'zzz'", "uniform, weighted"]),
    (["solve", "clients.csv", "--schem", "uniform"], ["--schem", "--scheme"]),
    (["solve", "clients.csv", "--frobnicate"], ["--frobnicate"]),
    (["solve"], ["FILE"]),
    (["solve", "clients.csv", "more.csv"], ["more.csv"]),
    (["slove", "clients.csv"], ["'slove'", "'solve'"]),
    (["--frobnicate"], ["--frobnicate"]),
    (["solve", "clients.csv", "-k", "2", "--max-weight", "0.4"], ["0.5", "0.4", "--max-weight"]),
    (["solve", "clients.csv", "--max-weight", "nan"], ["--max-weight", "nan"]),
    (["solve", "clients.csv", "--max-weight", "-1"], ["--max-weight", "-1"]),
    (["solve", "clients.csv", "--max-weight", "0"], ["--max-weight", "0"]),
    (["solve", "clients.csv", "--max-weight", "one"], ["--max-weight", "'one'"]),
    (["plan", "clients.csv", "--max-weight", "nan"], ["--max-weight", "nan"]),
    (["plan", "clients.csv", "--max-weight", "-1"], ["--max-weight", "-1"]),
    (["plan", "clients.csv", "--max-weight", "0"], ["--max-weight", "0"]),
    (["solve", "clients.csv", "--beta-over-alpha", "-1"], ["--beta-over-alpha", "-1", "default"]),
    (["solve", "clients.csv", "--beta-over-alpha", "nan"], ["--beta-over-alpha", "nan"]),
    (["solve", "clients.csv", "--beta-over-alpha", "inf"], ["--beta-over-alpha", "inf"]),
    (["solve", "clients.csv", "--beta-over-alpha", "much"], ["--beta-over-alpha", "'much'"]),
    (["solve", "clients.csv", "--beta-over-alpha", "1e300"], ["--beta-over-alpha", "1e+300"]),
    (["plan", "clients.csv", "--beta-over-alpha", "-1"], ["--beta-over-alpha", "-1"]),
    (["solve", "clients.csv", "-o", "no/q.csv"], ["no/q.csv", "no directory no", "create it"]),
    (["solve", "clients.csv", "-o", "."], ["is a directory", "name of a file"]),
    (["solve", "clients.csv", "-o", "clients.csv/q.csv"], ["clients.csv/q.csv", "no directory"]),
    (["solve", "clients.csv", "--plot", "no/q.png"], ["no/q.png", "no directory no"]),
    (["solve", "clients.csv", "--plot", "q.xyz"], ["q.xyz", "'.xyz'", ".png, .pdf or .svg"]),
    (["solve", "clients.csv", "--plot", "q"], ["q: ", ".png, .pdf or .svg"]),
    (["solve", "clients.csv", "--plot", "q.pgf"], ["q.pgf", "'.pgf'", ".png, .pdf or .svg"]),
    (["solve", "clients.csv", "-o", "q.csv", "--plot", "q.xyz"], ["q.xyz", "'.xyz'"]),
    (["plan", "clients.csv", "-o", "plan.csv", "--plot", "plan.xyz"], ["plan.xyz", "'.xyz'"]),
    (["solve", "clients.csv", "-o", "clients.csv"], ["clients.csv", "-o"]),
    (["solve", "clients.csv", "--plot", "./clients.csv"], ["clients.csv"]),
    (["plan", "clients.csv", "-o", "clients.csv"], ["clients.csv", "-o"]),
    (["solve", "clients.csv", "-o", "q.png", "--plot", "q.png"], ["q.png", "--plot"]),
    (["solve", "clients.csv", "--scheme", "full", "-o", "q.csv"], ["'full'", "no probabilities"]),
    (["solve", "clients.csv", "--scheme", "full", "--plot", "q.png"], ["'full'", "choose"]),
    (["solve", "clients.csv", "--scheme", "uniform", "--certify"], ["--certify", "'optimal-max'"]),
    (["solve", "clients.csv", "--scheme", "full", "--certify"], ["--certify", "'optimal-max'"]),
    (["plan", "clients.csv", "--ks", "5,ten"], ["--ks", "'5,ten'", "5,10,20"]),
    (["plan", "clients.csv", "--ks", "5,,10"], ["--ks", "'5,,10'", "5,10,20"]),
    (["plan", "clients.csv", "--ks", ""], ["--ks", "''", "5,10,20"]),
    (["plan", "clients.csv", "--ks", "5 10"], ["--ks", "'5 10'", "5,10,20"]),
    (["plan", "clients.csv", "--ks", "1.5"], ["--ks", "'1.5'"]),
    (["plan", "clients.csv", "--ks", "0,5"], ["--ks must be at least 1", "got 0"]),
    (["plan", "clients.csv", "--ks", "9" * 400], ["--ks"]),
    (["example", "new.csv", "--clients", "0"], ["--clients must be at least 1", "got 0"]),
    (["example", "new.csv", "--clients", "many"], ["--clients", "'many'"]),
    (["example", "new.csv", "--clients", "9" * 14], ["--clients"]),
    (["example", "new.csv", "--clients", "9" * 24], ["--clients"]),
    (["example", "new.csv", "--seed", "-1"], ["--seed", "-1"]),
    (["example", "no/new.csv"], ["no/new.csv", "no directory no"]),
    (["example", "."], [".: "]),
    (["example", "clients.csv"], ["clients.csv", "already", "--force"]),
    (["example", "n" * 300], ["n" * 300]),
    (["solve", "clients.csv", "-o", "n" * 300], ["n" * 300]),
]


@pytest.mark.parametrize(
    ("args", "fragments"), BAD_OPTIONS, ids=[" ".join(args)[:60] for args, _ in BAD_OPTIONS]
)
def test_a_bad_option_gets_one_line_and_leaves_no_file(
    folder: Path, args: list[str], fragments: list[str]
) -> None:
    before = contents(folder)
    outcome = run(*args)
    assert_refused(outcome, *fragments)
    assert contents(folder) == before


def test_a_bad_ratio_is_not_blamed_on_the_file(folder: Path) -> None:
    outcome = run("solve", "clients.csv", "--beta-over-alpha", "-1")
    assert_refused(outcome)
    assert "clients.csv" not in outcome.err


def test_too_few_clients_for_an_example_get_a_remedy_about_clients(folder: Path) -> None:
    outcome = run("example", "new.csv", "--clients", "0")
    assert_refused(outcome)
    assert "per round" not in outcome.err


def test_a_bad_option_is_found_before_a_large_file_is_read(folder: Path) -> None:
    for args in (
        ["--beta-over-alpha", "-1"],
        ["--max-weight", "-1"],
        ["--scheme", "uniform", "--certify"],
        ["--plot", "q.xyz"],
    ):
        outcome = run("solve", "not-there.csv", *args)
        assert_refused(outcome, args[-2] if args[-1] == "-1" else args[-1])


def test_no_arguments_show_the_help_and_nothing_else() -> None:
    outcome = run()
    assert "Usage: fedpace" in outcome.out + outcome.err
    assert "fedpace: \n" not in outcome.err
    assert outcome.err == "" or outcome.out == ""


def test_version_is_the_librarys() -> None:
    assert run("--version") == Outcome(0, fedpace.__version__ + "\n", "")


# Anything at all


CELLS = st.one_of(
    st.sampled_from(["0", "1", "-1", "1e400", "1e-400", "nan", "inf", "1,5", "1_0", "0x10", "1e"]),
    st.sampled_from(["[/b]", "[b]", "=1", "１２", "٣", "手"]),
    st.sampled_from(["", " ", "\x1b[2J", '"', "'", "\u2028", "\u202e", "\\", "a\nb"]),
    st.floats().map(repr),
    st.integers().map(str),
    st.text(max_size=6),
)
NAMES = st.sampled_from(["client", "samples", "weight", "time", "grad_norm", " TIME ", "", "x"])


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """A file that is nearly a clients file."""
    header = draw(
        st.one_of(
            st.permutations(["client", "samples", "time", "grad_norm"]),
            st.just(["weight", "time", "grad_norm"]),
            st.lists(NAMES, max_size=6),
        )
    )
    good = st.floats(1e-3, 1e3).map(repr)
    cell = draw(st.sampled_from([good, CELLS, st.one_of(good, good, good, CELLS)]))
    width = st.just(len(header)) if draw(st.booleans()) else st.integers(0, 6)
    rows = draw(st.lists(width.flatmap(lambda n: st.lists(cell, min_size=n, max_size=n))))
    stream = io.StringIO()
    if draw(st.booleans()):
        csv.writer(stream, delimiter=draw(st.sampled_from(",;\t"))).writerows([header, *rows])
    else:
        stream.write("\n".join(",".join(row) for row in [header, *rows]))
    return stream.getvalue().encode("utf-8", "surrogatepass")


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A good file, damaged in a few places."""
    data = bytearray(GOOD.encode())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 8))] = draw(
            st.one_of(
                st.sampled_from(
                    [b",", b"\n", b"\r", b'"', b";", b"\0", b"[/", b"]", b"-", b"\xff"]
                ),
                st.binary(max_size=4),
            )
        )
    return bytes(data)


@settings(max_examples=120, deadline=None)
@given(data=st.one_of(tables(), mangled(), st.binary(max_size=200)), k=st.integers(1, 20))
def test_no_file_whatever_gives_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, k: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "anything.csv"
    output = file.with_name("anything-q.csv")
    file.write_bytes(data)
    output.unlink(missing_ok=True)
    outcome = run("solve", file, "-k", k, "-o", output)
    if outcome.status == 0:
        assert outcome.err == ""
        with output.open(encoding="utf-8", newline="") as stream:
            q = [float(row["q"]) for row in csv.DictReader(stream)]
        assert min(q) > 0
        assert sum(q) == pytest.approx(1)
    else:
        assert_refused(outcome, str(file))
        assert not output.exists()


@settings(max_examples=60, deadline=None)
@given(
    args=st.lists(
        st.one_of(
            st.sampled_from(["-k", "--ks", "--scheme", "--max-weight", "--beta-over-alpha"]),
            st.sampled_from(["--json", "--certify", "uniform", "1,2", "x", "", "--"]),
            st.sampled_from(["0", "1", "7", "-1", "nan", "inf", "1e-9", "1e30"]),
        ),
        max_size=5,
    ),
    verb=st.sampled_from(["solve", "plan"]),
)
def test_no_options_whatever_give_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, verb: str, args: list[str]
) -> None:
    file = tmp_path_factory.getbasetemp() / "good.csv"
    file.write_text(GOOD)
    outcome = run(verb, file, *args)
    if outcome.status == 0:
        assert outcome.err == ""
    else:
        assert_refused(outcome)


# Good files


def q_of(file: Path | str, *options: object) -> dict[str, float]:
    outcome = run("solve", file, "-k", 2, "--json", *options)
    assert (outcome.status, outcome.err) == (0, "")
    record = strict_json(outcome.out)
    return dict(zip(record["clients"], record["q"], strict=True))


GOOD_FILES = {
    "byte order mark": "\ufeff" + GOOD,
    "crlf": GOOD.replace("\n", "\r\n"),
    "old mac": GOOD.replace("\n", "\r"),
    "semicolons": GOOD.replace(",", ";"),
    "tabs": GOOD.replace(",", "\t"),
    "upper case": GOOD.replace(HEADER, HEADER.upper()),
    "mixed case": GOOD.replace(HEADER, HEADER.title()),
    "spaces": GOOD.replace(HEADER, HEADER.replace(",", " , ")).replace("30,1.5", " 30 , 1.5\t"),
    "extra column": "".join(
        f"{line},{extra}\n"
        for line, extra in zip(GOOD.splitlines(), ["note", "x", "", '"y, z"'], strict=True)
    ),
    "other order": "grad_norm,time,client,samples\n2,1.5,ada,30\n1,0.5,bob,50\n3,4,cyd,20\n",
    "quoted": HEADER + '"ada","30","1.5","2"\n"bob","50",".5","1."\n"cyd","2e1","4","+3"\n',
    "blank lines": GOOD.replace("\n", "\n\n"),
    "blank first line": "\n" + GOOD,
    "spaces in the last line": GOOD + "   \n",
    "no last newline": GOOD.rstrip("\n"),
    "empty rows of a spreadsheet": GOOD + ",,,\n , , ,\n",
    "weights": "client,weight,time,grad_norm\nada,0.3,1.5,2\nbob,0.5,0.5,1\ncyd,0.2,4,3\n",
    "weights of few digits": (
        "client,weight,time,grad_norm\nada,0.3000001,1.5,2\nbob,0.5,0.5,1\ncyd,0.2,4,3\n"
    ),
}


@pytest.mark.parametrize("text", GOOD_FILES.values(), ids=GOOD_FILES.keys())
def test_the_same_clients_in_another_dress_get_the_same_probabilities(
    folder: Path, text: str
) -> None:
    (folder / "other.csv").write_bytes(text.encode())
    assert q_of("other.csv") == pytest.approx(q_of("clients.csv"), rel=1e-6)


def test_names_with_delimiters_quotes_and_brackets_survive(folder: Path) -> None:
    names = ["a,b", 'the "big" one', "two\nlines", "[/red]", "[bold]x", "é 手机", "a;b\tc"]
    with (folder / "names.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["client", "samples", "time", "grad_norm"])
        writer.writerows([name, 10 + i, 1 + i, 2] for i, name in enumerate(names))
    outcome = run("solve", "names.csv", "-o", "q.csv")
    assert (outcome.status, outcome.err) == (0, "")
    with (folder / "q.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["client"] for row in csv.DictReader(stream)] == names
    for name in ("a,b", 'the "big" one', "[/red]", "[bold]x"):
        assert name in outcome.out
    assert list(q_of("names.csv")) == names


def test_clients_without_names_are_numbered(folder: Path) -> None:
    (folder / "nameless.csv").write_text("samples,time,grad_norm\n30,1.5,2\n50,0.5,1\n20,4,3\n")
    assert list(q_of("nameless.csv")) == ["0", "1", "2"]
    assert list(q_of("nameless.csv").values()) == list(q_of("clients.csv").values())


def test_one_client_is_always_drawn(folder: Path) -> None:
    (folder / "one.csv").write_text(HEADER + "ada,3,1.5,2\n")
    assert q_of("one.csv") == {"ada": 1.0}
    outcome = run("solve", "one.csv", "-o", "q.csv", "--plot", "q.png")
    assert (outcome.status, outcome.err) == (0, "")
    assert run("plan", "one.csv", "--plot", "plan.png").status == 0


def test_two_equal_clients_share(folder: Path) -> None:
    (folder / "two.csv").write_text(HEADER + "a,3,1.5,2\nb,3,1.5,2\n")
    assert q_of("two.csv") == pytest.approx({"a": 0.5, "b": 0.5})
    assert run("solve", "two.csv", "--plot", "q.png").status == 0


@pytest.mark.parametrize("norms", [("0", "0", "0"), ("0", "2", "3"), ("0.0", "-0", "1e-5")])
def test_clients_with_a_gradient_norm_of_0_are_still_drawn(
    folder: Path, norms: tuple[str, ...]
) -> None:
    rows = (f"c{i},{10 + i},{1 + i},{norm}\n" for i, norm in enumerate(norms))
    (folder / "zero.csv").write_text(HEADER + "".join(rows))
    q = q_of("zero.csv")
    assert min(q.values()) > 0
    assert sum(q.values()) == pytest.approx(1)


@pytest.mark.slow
def test_a_million_rows_are_solved(folder: Path) -> None:
    rng = np.random.default_rng(0)
    block = "".join(
        f"{samples},{seconds:.4g},{norm:.4g}\n"
        for samples, seconds, norm in zip(
            rng.integers(10, 1000, 1000),
            rng.lognormal(size=1000),
            rng.lognormal(size=1000),
            strict=True,
        )
    )
    (folder / "million.csv").write_text("samples,time,grad_norm\n" + block * 1000)
    ended = spawn("solve", "million.csv", "-k", 1, "-o", "q.csv", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    q = np.loadtxt(folder / "q.csv", delimiter=",", skiprows=1, usecols=1)
    assert q.size == 1_000_000
    assert q.min() > 0
    assert q.sum() == pytest.approx(1, abs=1e-9)
    assert q[:1000] == pytest.approx(q[-1000:], rel=1e-6)


# solve


def library_rows(
    file: str, k: int, ks: list[int] | None = None, cap: float | None = None
) -> list[fedpace.Prediction]:
    return list(fedpace.plan(read_clients(Path(file)).profile, k, ks=ks, max_weight=cap))


def fields(row: fedpace.Prediction) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name != "design"}


def test_solve_prints_every_scheme_with_the_librarys_numbers(fleet: Path) -> None:
    outcome = run("solve", "clients.csv", "-k", 7)
    assert (outcome.status, outcome.err) == (0, "")
    printed = {
        words[0]: [float(word) for word in words[1:]]
        for line in outcome.out.splitlines()
        if (words := line.split()) and words[0] in fedpace.SCHEMES
    }
    assert list(printed) == list(fedpace.SCHEMES)
    for row in library_rows("clients.csv", 7):
        expected = [row.round_time, row.variance_term, row.largest_weight, row.relative_time]
        assert printed[row.scheme] == pytest.approx(expected, rel=5e-3, abs=5e-4)
    assert printed["uniform"][-1] == 1


def test_solve_prints_the_fastest_and_the_slowest_clients(fleet: Path) -> None:
    clients = read_clients(Path("clients.csv"))
    order = np.argsort(clients.profile.times)
    shown = [clients.names[i] for i in (*order[:5], *order[-5:])]
    lines = [line.split() for line in run("solve", "clients.csv", "-k", 7).out.splitlines()]
    rows = [words for words in lines if words and words[0].startswith("phone-")]
    assert [words[0] for words in rows] == shown
    design = fedpace.SCHEMES["optimal-max"](clients.profile, 7)
    assert isinstance(design, fedpace.WithReplacement)
    q = dict(zip(clients.names, design.q, strict=True))
    for words in rows:
        assert float(words[3]) == pytest.approx(q[words[0]], rel=1e-3)


def test_json_is_all_there_is_on_standard_output_and_equals_the_library(fleet: Path) -> None:
    outcome = run("solve", "clients.csv", "-k", 7, "--json", "-o", "q.csv", "--plot", "q.png")
    assert (outcome.status, outcome.err) == (0, "")
    record = strict_json(outcome.out)
    clients = read_clients(Path("clients.csv"))
    design = library_rows("clients.csv", 7)[-1].design
    assert isinstance(design, fedpace.WithReplacement)
    assert design.solution is not None
    assert record["k"] == 7
    assert record["scheme"] == "optimal-max"
    assert record["beta_over_alpha"] == clients.profile.beta_over_alpha
    assert record["schemes"] == [fields(row) for row in library_rows("clients.csv", 7)]
    assert record["clients"] == list(clients.names)
    assert record["q"] == design.q.tolist()
    for name, value in record["solution"].items():
        assert value == getattr(design.solution, name)
    assert (fleet / "q.csv").exists()
    assert (fleet / "q.png").exists()


@pytest.mark.parametrize("scheme", fedpace.SCHEMES)
@pytest.mark.parametrize("ratio", ["0", "1", "1e12"])
def test_json_is_valid_for_every_scheme_and_ratio(fleet: Path, scheme: str, ratio: str) -> None:
    outcome = run("solve", "clients.csv", "--scheme", scheme, "--beta-over-alpha", ratio, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    record = strict_json(outcome.out)
    assert record["beta_over_alpha"] == float(ratio)
    assert ("q" in record) == (scheme != "full")


@pytest.mark.parametrize("scheme", [name for name in fedpace.SCHEMES if name != "full"])
def test_the_file_of_probabilities_equals_the_library(fleet: Path, scheme: str) -> None:
    outcome = run("solve", "clients.csv", "-k", 7, "--scheme", scheme, "-o", "q.csv")
    assert (outcome.status, outcome.err) == (0, "")
    assert "q.csv" in outcome.out
    clients = read_clients(Path("clients.csv"))
    design = fedpace.SCHEMES[scheme](clients.profile, 7)
    assert isinstance(design, fedpace.WithReplacement)
    with (fleet / "q.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["client", "q", "aggregation_weight"]
    q = np.array([float(row["q"]) for row in rows])
    weights = np.array([float(row["aggregation_weight"]) for row in rows])
    assert [row["client"] for row in rows] == list(clients.names)
    assert q == pytest.approx(design.q, rel=1e-9)
    assert q.sum() == pytest.approx(1, abs=1e-12)
    assert weights == pytest.approx(clients.profile.weights / (7 * q), rel=1e-12)


def test_no_weight_exceeds_the_cap(fleet: Path) -> None:
    free = run("solve", "clients.csv", "-k", 4, "--json")
    assert max(row["largest_weight"] for row in strict_json(free.out)["schemes"][3:]) > 0.6
    outcome = run("solve", "clients.csv", "-k", 4, "--max-weight", 0.6, "--json", "-o", "q.csv")
    record = strict_json(outcome.out)
    assert all(row["largest_weight"] <= 0.6 * (1 + 1e-9) for row in record["schemes"][3:])
    weights = np.loadtxt(fleet / "q.csv", delimiter=",", skiprows=1, usecols=2)
    assert weights.max() <= 0.6 * (1 + 1e-9)
    expected = [fields(row) for row in library_rows("clients.csv", 4, cap=0.6)]
    assert record["schemes"] == expected


def test_a_risky_weight_is_noted_and_the_cap_of_1_ends_the_note(folder: Path) -> None:
    assert run("example", "clients.csv", "--force").status == 0
    risky = run("solve", "clients.csv", "-k", 2)
    assert "above 1 a single draw" in " ".join(risky.out.split())
    for k in (2, 3, 5, 10):  # the weights of some of them exceed 1 by rounding
        capped = run("solve", "clients.csv", "-k", k, "--max-weight", 1)
        assert capped.status == 0
        assert "above 1" not in " ".join(capped.out.split())


def test_a_picture_opens(fleet: Path) -> None:
    for ending in ("PNG", "pdf", "svg"):
        outcome = run("solve", "clients.csv", "--plot", f"q.{ending}")
        assert (outcome.status, outcome.err) == (0, "")
        assert f"q.{ending}" in outcome.out
    assert (fleet / "q.PNG").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    with Image.open(fleet / "q.PNG") as picture:
        picture.load()
        assert picture.format == "PNG"
        assert min(picture.size) > 400
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 24) or []) > 50
    assert (fleet / "q.pdf").read_bytes().startswith(b"%PDF-")
    assert (fleet / "q.pdf").read_bytes().rstrip().endswith(b"%%EOF")
    assert ET.parse(fleet / "q.svg").getroot().tag.endswith("svg")


def test_certify_prints_a_bound_that_is_tighter(fleet: Path) -> None:
    def bound(*options: str) -> float:
        outcome = run("solve", "clients.csv", "-k", 10, *options)
        found = re.search(r"at most ([\d.]+) % above", " ".join(outcome.out.split()))
        assert found, outcome.out
        return float(found[1])

    assert 0 <= bound("--certify") < min(20, bound())


def test_certify_describes_the_probabilities_it_returns(folder: Path) -> None:
    # Dynamic programming finds a better local optimum here than the usual starts do.
    weights = [0.0412, 0.1407, 0.0367, 0.0228, 0.0373, 0.2202, 0.1445, 0.1086, 0.1377, 0.1102]
    times = [0.8238, 4.1339, 1.5531, 2.0444, 0.2091, 3.774, 5.8339, 0.9744, 0.61, 2.2519]
    norms = [5.7698, 1.8521, 1.5121, 0.3456, 1.2436, 1.4896, 2.6442, 1.4513, 4.044, 5.44]
    rows = (f"{1e4 * p:.0f},{t},{g}\n" for p, t, g in zip(weights, times, norms, strict=True))
    (folder / "local.csv").write_text("samples,time,grad_norm\n" + "".join(rows))
    args = ["solve", "local.csv", "-k", "119", "--beta-over-alpha", "468.3", "--json"]
    usual, certified = (strict_json(run(*args, *more).out) for more in ([], ["--certify"]))
    assert certified["solution"]["objective"] < 0.999 * usual["solution"]["objective"]
    profile = read_clients(Path("local.csv")).profile
    row = certified["schemes"][-1]
    assert row["round_time"] == pytest.approx(
        fedpace.expected_round_time(certified["q"], profile.times, 119)
    )
    ratio = certified["solution"]["objective"] / usual["solution"]["objective"]
    assert row["relative_time"] == pytest.approx(ratio * usual["schemes"][-1]["relative_time"])


def test_full_has_a_table_and_no_probabilities(fleet: Path) -> None:
    outcome = run("solve", "clients.csv", "--scheme", "full")
    assert (outcome.status, outcome.err) == (0, "")
    assert "optimal-max" in outcome.out
    assert "phone-" not in outcome.out


# Output files


def test_output_replaces_an_old_file_at_once(fleet: Path) -> None:
    (fleet / "q.csv").write_text("old")
    with (fleet / "q.csv").open() as old:
        assert run("solve", "clients.csv", "-o", "q.csv").status == 0
        assert old.read() == "old"  # whoever has it open keeps all of it
    assert (fleet / "q.csv").read_text().startswith("client,q,")
    assert sorted(contents(fleet)) == ["clients.csv", "q.csv"]


def test_the_mode_of_output_honours_the_umask(fleet: Path) -> None:
    ended = spawn("solve", "clients.csv", "-o", "q.csv", "--plot", "q.png", cwd=fleet, umask=0o027)
    assert ended.returncode == 0
    for name in ("q.csv", "q.png"):
        assert stat.S_IMODE((fleet / name).stat().st_mode) == 0o640


def test_brackets_in_a_file_name_are_printed(folder: Path) -> None:
    (folder / "[red]").mkdir()
    outcome = run("example", "[red]/clients.csv")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("[red]/clients.csv: ")
    outcome = run("solve", "[red]/clients.csv", "-o", "[red]/q.csv")
    assert "Written: [red]/q.csv" in outcome.out


# plan


def test_plan_prints_three_tables_with_the_librarys_numbers(fleet: Path) -> None:
    outcome = run("plan", "clients.csv", "-k", 7)
    assert (outcome.status, outcome.err) == (0, "")
    text = outcome.out.replace(" *", "")
    ks = usual_ks(60, 7)
    printed = [
        [float(word) for word in line.split()]
        for line in text.splitlines()
        if re.fullmatch(r"[\d.,e+\- ]+", line) and line.strip()
    ]
    assert [row[0] for row in printed] == 3 * ks
    rows = library_rows("clients.csv", 7, ks)
    columns = ("relative_time", "round_time", "variance_term")
    for i, k in enumerate(ks):
        for j, column in enumerate(columns):
            expected = [getattr(row, column) for row in rows if row.k == k]
            assert printed[i + j * len(ks)][1:] == pytest.approx(expected, rel=5e-3, abs=5e-4)


def test_the_best_k_is_the_least_of_the_table(fleet: Path) -> None:
    outcome = run("plan", "clients.csv", "-k", 7)
    best = min(library_rows("clients.csv", 7, usual_ks(60, 7)), key=lambda row: row.relative_time)
    assert outcome.out.count(" *") == 1
    starred = next(line for line in outcome.out.splitlines() if " *" in line)
    assert int(starred.split()[0]) == best.k
    assert f"{best.scheme} with K = {best.k}, {best.relative_time:.3g} of" in outcome.out


def test_full_as_the_best_is_not_given_a_k(folder: Path) -> None:
    (folder / "equal.csv").write_text(HEADER + "".join(f"c{i},5,2,1\n" for i in range(20)))
    outcome = run("plan", "equal.csv")
    assert outcome.status == 0
    assert "Best (*): full" in outcome.out
    assert "full with K" not in outcome.out  # everyone takes part, whatever K


def test_plan_json_equals_the_library(fleet: Path) -> None:
    outcome = run("plan", "clients.csv", "-k", 7, "--ks", "20,3,3", "--max-weight", 1, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    record = strict_json(outcome.out)
    rows = library_rows("clients.csv", 7, [3, 20], 1)
    assert record["k"] == 7
    assert record["rows"] == [fields(row) for row in rows]
    assert record["best"] == min(record["rows"], key=lambda row: row["relative_time"])


def test_plan_writes_its_table(fleet: Path) -> None:
    args = ["plan", "clients.csv", "-k", "7", "--ks", "2,30"]
    outcome = run(*args, "-o", "plan.csv", "--plot", "plan.png")
    assert (outcome.status, outcome.err) == (0, "")
    with (fleet / "plan.csv").open(encoding="utf-8", newline="") as stream:
        written = list(csv.DictReader(stream))
    expected = [fields(row) for row in library_rows("clients.csv", 7, [2, 30])]
    assert len(written) == 2 * len(fedpace.SCHEMES)
    for row, values in zip(written, expected, strict=True):
        assert list(row) == list(values)
        assert row["scheme"] == values["scheme"]
        for name in list(values)[1:]:
            assert float(row[name]) == values[name]
    with Image.open(fleet / "plan.png") as picture:
        picture.load()
        assert picture.format == "PNG"


# example


def test_example_is_the_same_for_the_same_seed(folder: Path) -> None:
    for name, seed in (("a.csv", 3), ("b.csv", 3), ("c.csv", 4)):
        assert run("example", name, "--clients", 20, "--seed", seed).status == 0
    texts = [(folder / name).read_text() for name in ("a.csv", "b.csv", "c.csv")]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0].splitlines()) == 21


def test_example_overwrites_only_when_told_to(folder: Path) -> None:
    assert_refused(run("example", "clients.csv"), "clients.csv", "--force")
    assert (folder / "clients.csv").read_text() == GOOD
    assert run("example", "clients.csv", "--force").status == 0
    assert (folder / "clients.csv").read_text() != GOOD


@pytest.mark.parametrize("n", [1, 2, 1000])
def test_an_example_is_accepted_by_the_command_it_names(folder: Path, n: int) -> None:
    outcome = run("example", "new.csv", "--clients", n)
    assert (outcome.status, outcome.err) == (0, "")
    next_command = outcome.out.split("Next: ")[1].split()
    assert next_command[0] == "fedpace"
    assert run(*next_command[1:]).status == 0


# Help


@pytest.mark.parametrize("verb", [[], ["example"], ["solve"], ["plan"]])
def test_the_example_in_the_help_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    helped = run(*verb, "--help")
    assert (helped.status, helped.err) == (0, "")
    line = next(line for line in helped.out.splitlines() if re.search(r":  +fedpace ", line))
    examples = [part.strip() for part in line.split(":", 1)[1].split("&&")]
    if not any(example.startswith("fedpace example") for example in examples):
        assert run("example", "clients.csv").status == 0
    for example in examples:
        name, *args = shlex.split(example)
        assert name == "fedpace"
        outcome = run(*args)
        assert (outcome.status, outcome.err) == (0, "")
        for written in re.findall(r"-o (\S+)", example):
            assert (tmp_path / written).exists()


# Streams and signals


@contextlib.contextmanager
def started(args: list[str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        args, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def many_rows(n: int) -> str:
    rng = np.random.default_rng(1)
    columns = zip(rng.lognormal(size=n).tolist(), rng.lognormal(size=n).tolist(), strict=True)
    return "samples,time,grad_norm\n" + "".join(f"5,{t:.5g},{g:.5g}\n" for t, g in columns)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("delay", [0.0, 0.7])
def test_control_c_ends_quietly(tmp_path: Path, delay: float) -> None:
    # The pipe opens when the command reads its file: all imports are done.
    os.mkfifo(tmp_path / "clients.csv")
    (tmp_path / "q.csv").write_text("old")
    with started(command("solve", "clients.csv", "-o", "q.csv"), tmp_path) as process:
        with (tmp_path / "clients.csv").open("w") as stream:
            stream.write(many_rows(300_000))
        time.sleep(delay)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert err.strip() == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clients.csv", "q.csv"]
    assert (tmp_path / "q.csv").read_text() == "old"


@pytest.mark.parametrize(("options", "wanted"), [(["--json"], 10), (["--json"], 0), ([], 0)])
def test_a_reader_that_has_seen_enough_is_no_error(
    tmp_path: Path, options: list[str], wanted: int
) -> None:
    (tmp_path / "clients.csv").write_text(many_rows(5_000))  # JSON beyond a pipe's buffer
    with started(command("solve", "clients.csv", *options), tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.read(wanted)) == wanted
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=30) in (0, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [["--json"], []])
def test_a_full_disk_behind_standard_output_is_one_line(folder: Path, options: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            command("solve", "clients.csv", *options),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode != 0
    assert "No space left" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="needs a shell that closes streams")
def test_a_closed_standard_output_gives_no_traceback(folder: Path) -> None:
    line = shlex.join(command("solve", "clients.csv", "-o", "q.csv")) + " >&-"
    ended = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in ended.stderr
    assert (folder / "q.csv").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_killed_while_writing_leaves_the_old_output_or_all_of_the_new(tmp_path: Path) -> None:
    n = 100_000
    (tmp_path / "clients.csv").write_text("samples,time,grad_norm\n" + "5,1,1\n" * n)
    output = tmp_path / "q.csv"
    output.write_text("old")
    before = output.stat()
    with started(command("solve", "clients.csv", "-o", "q.csv"), tmp_path) as process:
        while process.poll() is None:
            if len(os.listdir(tmp_path)) > 2 or output.stat() != before:
                process.kill()
                break
            time.sleep(0.0002)
        _, err = process.communicate(timeout=30)
    assert err == ""
    text = output.read_text()
    assert text == "old" or (text.count("\n") == n + 1 and text.endswith("\n"))


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_progress_goes_to_the_terminal_and_leaves_standard_output_alone(fleet: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("plan", "clients.csv"),
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
    ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while chunk := os.read(ours, 1 << 16):
                shown += chunk
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0
    assert "schemes × K" in shown.decode()
    assert printed == run("plan", "clients.csv").out
    assert "\x1b" not in printed


WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from fedpace.cli import main
sys.argv[0] = "fedpace"
main()
"""


def run_without_matplotlib(*args: str) -> Outcome:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_MATPLOTLIB, *args], capture_output=True, text=True
    )
    return Outcome(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.parametrize("verb", ["solve", "plan"])
def test_without_matplotlib_the_extra_is_named_and_nothing_is_written(
    folder: Path, verb: str
) -> None:
    before = contents(folder)
    outcome = run_without_matplotlib(verb, "clients.csv", "--plot", "q.png", "-o", "q.csv")
    assert_refused(outcome, "Matplotlib", "pip install 'fedpace[report]'")
    assert contents(folder) == before


def test_without_matplotlib_all_but_figures_works(folder: Path) -> None:
    outcome = run_without_matplotlib("solve", "clients.csv", "-o", "q.csv")
    assert (outcome.status, outcome.err) == (0, "")
    assert (folder / "q.csv").exists()


# Legibility


@pytest.mark.parametrize("verb", ["solve", "plan"])
def test_a_narrow_terminal_cuts_no_number(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    wide = run(verb, "clients.csv")
    monkeypatch.setenv("COLUMNS", "40")
    narrow = run(verb, "clients.csv")
    assert (narrow.status, narrow.err) == (0, "")
    assert "…" not in narrow.out
    assert len(numbers_in(wide.out)) > 60
    assert sorted(numbers_in(narrow.out)) == sorted(numbers_in(wide.out))
    for scheme in fedpace.SCHEMES:
        assert scheme in narrow.out


@pytest.mark.parametrize("verb", ["solve", "plan"])
def test_large_numbers_are_not_cut_where_there_is_no_terminal(folder: Path, verb: str) -> None:
    rows = (f"a-client-with-a-long-name-{i},{10**i},{1.2345e7 + i},{3.3e9}\n" for i in range(6))
    (folder / "large.csv").write_text(HEADER + "".join(rows))
    outcome = run(verb, "large.csv", "-k", 123_456)
    assert (outcome.status, outcome.err) == (0, "")
    assert "…" not in outcome.out


def test_a_percentage_is_written_plainly(fleet: Path) -> None:
    outcome = run("solve", "clients.csv", "-k", 1000)
    assert re.search(r"at most [\d,.]+ % above", " ".join(outcome.out.split()))


@pytest.mark.parametrize(
    ("verb", "encoding"), [("solve", "ascii"), ("plan", "ascii"), ("solve", "cp1252")]
)
def test_a_terminal_that_lacks_a_letter_gives_no_traceback(
    folder: Path, verb: str, encoding: str
) -> None:
    (folder / "clients.csv").write_text(GOOD.replace("ada", "手机"), encoding="utf-8")
    ended = subprocess.run(
        command(verb, "clients.csv"),
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )
    assert ended.stderr == b""
    assert ended.returncode == 0
    assert b"optimal-max" in ended.stdout


@pytest.mark.parametrize("args", [["solve", "clients.csv"], ["--help"], ["solve", "--help"]])
def test_output_that_is_not_a_terminal_has_no_escape_codes(fleet: Path, args: list[str]) -> None:
    outcome = run(*args)
    assert outcome.status == 0
    assert len(outcome.out) > 500
    assert "\x1b" not in outcome.out
