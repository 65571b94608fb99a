"""Options that are wrong: one line, status 2, and nothing is written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace.cli.options import TRAINED, named_schemes
from fedpace.samplers.build import resolve
from fedpace.sampling.schemes import SCHEMES
from tests.cli.calling import (
    GOOD,
    assert_refused,
    contents,
    run,
)

BAD_OPTIONS: list[tuple[list[str], list[str]]] = [
    (["solve", "clients.csv", "-k", "-3"], ["-k must be at least 1", "got -3"]),
    (["solve", "clients.csv", "-k", "ten"], ["-k", "'ten'", "integer"]),
    (["solve", "clients.csv", "-k", "2.5"], ["-k", "'2.5'", "integer"]),
    (["solve", "clients.csv", "-k", "9" * 400], ["-k"]),
    (["solve", "clients.csv", "--scheme", "unifrom"], ["'unifrom'", "did you mean 'uniform'?"]),
    (["solve", "clients.csv", "--scheme", "max"], ["'max'", "did you mean 'optimal-max'?"]),
    (["solve", "clients.csv", "--scheme", "zzz"], ["'zzz'", "uniform, weighted"]),
    (["solve", "clients.csv", "--scheme", "pace"], ["'pace'", "learns", "fedpace run "]),
    (["plan", "clients.csv", "--schemes", "uniform,fedcs"], ["'fedcs'", "--schemes fedcs --out"]),
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
    (["example", "new.csv", "--clients", "many"], ["--clients", "'many'"]),
    (["example", "new.csv", "--clients", "9" * 24], ["--clients"]),
    (["example", "no/new.csv"], ["no/new.csv", "no directory no"]),
    (["example", "."], [".: "]),
    (["example", "clients.csv"], ["clients.csv: already exists; ", "--force"]),
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
    assert "clients.csv" not in outcome.stderr


def test_a_bad_option_is_found_before_a_large_file_is_read(folder: Path) -> None:
    for args in (
        ["--beta-over-alpha", "-1"],
        ["--max-weight", "-1"],
        ["--scheme", "uniform", "--certify"],
        ["--plot", "q.xyz"],
    ):
        outcome = run("solve", "not-there.csv", *args)
        assert_refused(outcome, args[-2] if args[-1] == "-1" else args[-1])


RUN = ["run", "simulation-1", "--out", "runs"]
LAB_RUN = ["lab", "run", "prototype", "--out", "runs"]
CERTS = ["lab", "certs", "--out", "certs", "--devices", "2", "--server", "localhost"]
JOIN = ["lab", "join", "127.0.0.1:1", "--name", "a"]
COUNTS = {
    "-k": ["solve", "clients.csv"],
    "-k ": ["plan", "clients.csv"],
    "--seeds": RUN,
    "--processes": RUN,
    "--seeds ": LAB_RUN,
    "--least": LAB_RUN,
    "--devices": ["lab", "up"],
    "--days": CERTS,
}


@pytest.mark.parametrize(("option", "command"), COUNTS.items(), ids=str)
def test_a_count_of_0_gets_a_remedy_that_fits(
    folder: Path, option: str, command: list[str]
) -> None:
    before = contents(folder)
    done = run(*command, option.strip(), 0)
    assert_refused(done)
    assert done.stderr == f"fedpace: {option.strip()} must be at least 1, got 0; give 1 or more\n"
    assert contents(folder) == before


def test_a_count_beyond_its_limit_gets_the_limit(folder: Path) -> None:
    for count in (0, 10**14):
        done = run("example", "new.csv", "--clients", count)
        assert_refused(done, f"got {count}; give 1 to 10,000,000")


@pytest.mark.parametrize(
    ("option", "command"),
    [
        ("--seed", ["example", "new.csv"]),
        ("--seed", ["data", "show", "simulation-1"]),
        ("--seed", ["lab", "up"]),
        ("--first-seed", RUN),
        ("--first-seed", LAB_RUN),
    ],
    ids=str,
)
def test_a_negative_seed_is_refused(folder: Path, option: str, command: list[str]) -> None:
    done = run(*command, option, -1)
    assert_refused(done, f"fedpace: {option} must be at least 0, got -1; give 0, 1, 2, …")


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize(
    ("option", "command"),
    [
        ("--time-scale", ["lab", "up"]),
        ("--deadline", LAB_RUN),
        ("--patience", LAB_RUN),
        ("--patience", JOIN),
        ("--pace", JOIN),
    ],
    ids=str,
)
def test_what_must_be_positive_is_checked(
    folder: Path, option: str, command: list[str], value: str
) -> None:
    done = run(*command, option, value)
    assert_refused(
        done, f"{option} must be positive and finite, got {value}; give a number above 0"
    )


@pytest.mark.parametrize("command", [["plan", "clients.csv"], RUN, LAB_RUN], ids=" ".join)
def test_schemes_are_named_alike_everywhere(folder: Path, command: list[str]) -> None:
    for text, hint in (("unifrom", "did you mean 'uniform'?"), ("all,", "use one of: full, ")):
        bad = text.removeprefix("all,")
        done = run(*command, "--schemes", text)
        assert_refused(done, "--schemes must be a known name", f"got '{bad}'; {hint}")


def test_all_stands_for_the_compared_schemes_in_a_list_too() -> None:
    assert named_schemes("all") == list(SCHEMES)
    assert named_schemes("optimal-max, all") == [
        "optimal-max",
        *(name for name in SCHEMES if name != "optimal-max"),
    ]
    assert named_schemes("all,math:cos") == [*SCHEMES, "math:cos"]


def test_all_stands_for_samplers_too_where_there_is_training() -> None:
    names = named_schemes("all", resolve, every=TRAINED)
    assert names == [*SCHEMES, "pace", "optimal-mean-no-pilots"]
    helps = [run(*words, "--help").stdout for words in (["run"], ["lab", "run"], ["plan"])]
    assert ["no-pilots" in text for text in helps] == [True, True, False]


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
    if outcome.returncode == 0:
        assert outcome.stderr == ""
    else:
        assert_refused(outcome)


AS_NOBODY = """
import contextlib, io, json, os, sys
from fedpace.cli import main
import fedpace.report.charts  # what is loaded later may not be readable
if os.geteuid() == 0:  # root may read and write everything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for args in json.load(sys.stdin):
    sys.argv = ["fedpace", *args]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""
FORBIDDEN = [
    (["solve", "secret.csv"], ["secret.csv", "read"]),
    (["solve", "clients.csv", "-o", "locked/q.csv"], ["locked/q.csv", "ermission"]),
    (["solve", "clients.csv", "-o", "old.csv"], ["old.csv", "ermission"]),
    (["plan", "clients.csv", "--plot", "locked/q.png"], ["locked/q.png", "ermission"]),
    (["example", "locked/new.csv"], ["locked/new.csv", "ermission"]),
]


def test_what_may_not_be_read_or_written_is_refused(folder: Path) -> None:
    (folder / "secret.csv").write_text(GOOD)
    (folder / "secret.csv").chmod(0)
    (folder / "old.csv").write_text("old")
    (folder / "old.csv").chmod(0o444)
    (folder / "locked").mkdir(0o555)
    folder.chmod(0o755)
    ended = subprocess.run(
        [sys.executable, "-c", AS_NOBODY],
        input=json.dumps([args for args, _ in FORBIDDEN]),
        capture_output=True,
        text=True,
        check=True,
    )
    for (args, fragments), line in zip(FORBIDDEN, ended.stdout.splitlines(), strict=True):
        assert_refused(subprocess.CompletedProcess(args, *json.loads(line)), *fragments)
    assert (folder / "old.csv").read_text() == "old"
    assert list((folder / "locked").iterdir()) == []
