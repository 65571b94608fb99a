"""Clients files as commands read them: good ones, bad ones, and anything at all."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.calling import (
    GOOD,
    HEADER,
    assert_refused,
    contents,
    run,
    strict_json,
)

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
    assert ";" in outcome.stderr  # the remedy follows it
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
    assert "\0" not in outcome.stderr
    assert any(fragment in outcome.stderr for fragment in fragments)
    assert contents(folder) == before


def test_control_characters_of_a_cell_do_not_reach_the_terminal(folder: Path) -> None:
    (folder / "bad.csv").write_text(HEADER + "a,\x1b[31m7,2,3\n")
    outcome = run("solve", "bad.csv")
    assert_refused(outcome, "row 2", "'samples'", "[31m7")
    assert "\x1b" not in outcome.stderr


def test_a_missing_column_among_thousands_gets_a_short_line(folder: Path) -> None:
    width = 3000
    header = ",".join(f"x{i}" for i in range(width))
    (folder / "bad.csv").write_text(header + "\n" + ",".join("1" * width) + "\n")
    outcome = run("solve", "bad.csv")
    assert_refused(outcome, "bad.csv", "'samples' (or 'weight') is missing")
    assert len(outcome.stderr) < 1000


def test_a_missing_column_without_near_miss_names_the_columns_needed(folder: Path) -> None:
    (folder / "bad.csv").write_text("n,seconds,g\n1,2,3\n")
    outcome = run("solve", "bad.csv")
    assert_refused(outcome, "'samples' (or 'weight') is missing", "'n', 'seconds', 'g'")
    assert "use one of" not in outcome.stderr  # those are the names that will not do
    assert "the file needs" in outcome.stderr


def test_the_remedy_for_text_is_a_number_and_not_to_drop_the_client(folder: Path) -> None:
    (folder / "bad.csv").write_text(HEADER + "a,many,2,3\n")
    outcome = run("solve", "bad.csv")
    assert_refused(outcome, "'many' is not a number")
    assert "drop" not in outcome.stderr


def test_weights_that_do_not_sum_to_1_get_a_remedy_for_the_file(folder: Path) -> None:
    (folder / "bad.csv").write_text("weight,time,grad_norm\n0.4,1,1\n0.4,2,1\n")
    outcome = run("solve", "bad.csv")
    assert_refused(outcome, "column 'weight'", "0.8")
    assert "Profile" not in outcome.stderr


def test_a_missing_file_gets_the_command_that_writes_one(folder: Path) -> None:
    outcome = run("solve", "clinets.csv")
    assert_refused(outcome, "clinets.csv: no such file", "fedpace example clinets.csv")


def test_a_directory_instead_of_a_file_is_refused(folder: Path) -> None:
    assert_refused(run("solve", folder), f"{folder}: ", "irectory", "CSV file")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux's /proc")
def test_a_file_that_breaks_while_read_is_refused() -> None:
    assert_refused(run("solve", "/proc/self/mem"), "/proc/self/mem", "cannot be read")


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
    if outcome.returncode == 0:
        assert outcome.stderr == ""
        with output.open(encoding="utf-8", newline="") as stream:
            q = [float(row["q"]) for row in csv.DictReader(stream)]
        assert min(q) > 0
        assert sum(q) == pytest.approx(1)
    else:
        assert_refused(outcome, str(file))
        assert not output.exists()


def q_of(file: Path | str, *options: object) -> dict[str, float]:
    outcome = run("solve", file, "-k", 2, "--json", *options)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    record = strict_json(outcome.stdout)
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
    assert (outcome.returncode, outcome.stderr) == (0, "")
    with (folder / "q.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["client"] for row in csv.DictReader(stream)] == names
    for name in ("a,b", 'the "big" one', "[/red]", "[bold]x"):
        assert name in outcome.stdout
    assert list(q_of("names.csv")) == names


def test_clients_without_names_are_numbered(folder: Path) -> None:
    (folder / "nameless.csv").write_text("samples,time,grad_norm\n30,1.5,2\n50,0.5,1\n20,4,3\n")
    assert list(q_of("nameless.csv")) == ["0", "1", "2"]
    assert list(q_of("nameless.csv").values()) == list(q_of("clients.csv").values())


def test_one_client_is_always_drawn(folder: Path) -> None:
    (folder / "one.csv").write_text(HEADER + "ada,3,1.5,2\n")
    assert q_of("one.csv") == {"ada": 1.0}
    outcome = run("solve", "one.csv", "-o", "q.csv", "--plot", "q.png")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert run("plan", "one.csv", "--plot", "plan.png").returncode == 0


def test_two_equal_clients_share(folder: Path) -> None:
    (folder / "two.csv").write_text(HEADER + "a,3,1.5,2\nb,3,1.5,2\n")
    assert q_of("two.csv") == pytest.approx({"a": 0.5, "b": 0.5})
    assert run("solve", "two.csv", "--plot", "q.png").returncode == 0


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
    done = run("solve", "million.csv", "-k", 1, "-o", "q.csv")
    assert (done.returncode, done.stderr) == (0, "")
    q = np.loadtxt(folder / "q.csv", delimiter=",", skiprows=1, usecols=1)
    assert q.size == 1_000_000
    assert q.min() > 0
    assert q.sum() == pytest.approx(1, abs=1e-9)
    assert q[:1000] == pytest.approx(q[-1000:], rel=1e-6)
