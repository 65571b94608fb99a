"""A user's own model and data are a study: from Python, from TOML, resumed, saved, reported."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedpace
from fedpace.errors import InputError
from fedpace.models.networks import Logistic
from fedpace.studies.store import Store
from fedpace.training.callbacks import RunInfo
from fedpace.training.history import Row

RNG = np.random.default_rng(0)
CLIENTS = [
    (x := RNG.normal(size=(20 + 5 * i, 4)).astype(np.float32), (x[:, 0] > 0.2 * i).astype(int))
    for i in range(6)
]
FAST = {"k": 2, "rounds": 4, "local_steps": 3, "batch": 8, "schedule": "constant:0.1"}


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def compared(out: Path, **changed: Any) -> Any:
    how: dict[str, Any] = {
        "model": Net,
        "clients": CLIENTS,
        "schemes": ["uniform", "pace"],
        "seeds": 2,
    }
    return fedpace.compare(out=out, **({**how, **FAST} | changed))


def test_an_own_module_is_compared_resumed_and_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = compared(tmp_path, target=0.01, save=True)
    assert first.page.read_text().count("<section") == 1
    assert {(run.scheme, run.seed) for run in first.runs} == {
        ("uniform", 0), ("uniform", 1), ("pace", 0), ("pace", 1),
    }  # fmt: skip
    assert first.seconds("pace") == np.inf  # a loss of 0.01 after four rounds: never
    with np.load(tmp_path / "models" / "pace-seed1.npz") as saved:
        state = {name: torch.from_numpy(saved[name]) for name in saved.files}
    Net().load_state_dict(state)  # every name, in its shape
    assert int(state["1.num_batches_tracked"]) > 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert isinstance(first.model("pace"), nn.Sequential)
    again = compared(tmp_path, target=0.01, save=True)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()} == before
    assert again.seconds("uniform") == first.seconds("uniform")
    capsys.readouterr()


@pytest.mark.parametrize("mode", ["asynchronous", "auto"])
def test_the_result_answers_in_every_mode(mode: Any, tmp_path: Path) -> None:
    how: dict[str, Any] = {"schemes": "uniform, pace", "mode": mode, "target": 0.6, "rounds": 60}
    result = compared(tmp_path, model=Logistic(4, 2), save=True, **how)
    assert result.best() in (row.scheme for row in result.report.summaries[0].rows)
    assert 0 < result.seconds("pace") < np.inf
    assert result.seconds(f"pace ({mode})") == result.seconds("pace")
    assert f"{result.best()} reached loss 0.6 in " in repr(result)
    table, runs, rounds = (result.to_pandas(what) for what in ("table", "runs", "rounds"))
    assert sorted(table["scheme"]) == sorted(runs["scheme"].unique())
    assert list(table.columns[:3]) == ["setup", "target", "scheme"]
    assert len(runs) == 4
    assert len(rounds) == sum(len(run.history.rows) for run in result.runs)
    shown = result._repr_html_()
    assert '<svg style="overflow: visible"' in shown  # whatever the width of a browser's font
    assert shown.count("<table") == shown.count("<svg") == 1
    assert result.plot(tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert result.model()["parameters"].size == Logistic(4, 2).size
    with pytest.raises(InputError, match="what must be table, runs or rounds, got 'row'"):
        result.to_pandas("row")


def test_without_saved_models_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got none; give save=True"):
        compared(tmp_path, model=Logistic(4, 2), schemes="uniform", seeds=1).model()


def test_other_data_or_another_model_are_other_runs(tmp_path: Path) -> None:
    result = compared(tmp_path, schemes="uniform", seeds=1)
    compared(tmp_path, schemes="uniform", seeds=1, clients=CLIENTS[:-1], model=lambda: Net())
    compared(tmp_path, schemes="uniform", seeds=1, times=np.arange(1.0, 7.0))
    assert len(Store(tmp_path).keys()) == 3
    with pytest.raises(InputError, match="scheme must have been compared, got 'pace'"):
        result.seconds("pace")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seeds": 1.5}, "seeds must be a number or a list of integers, got 1.5"),
        ({"seeds": 0}, "a study must have schemes and seeds"),
        ({"schemes": ["unifrom"]}, "did you mean 'uniform'"),
        ({"target": "low"}, "target must be a loss"),
        ({"times": [1.0, 2.0]}, "one number per client, got shape"),
        ({"times": "exponentail:1"}, "did you mean 'exponential'"),
        ({"clients": [(np.full((3, 2), np.nan), np.zeros(3))]}, "x must be finite, got NaN"),
        ({"clients": [(np.ones((3, 2)), np.zeros(2))]}, "one row per sample, got shapes"),
        ({"clients": []}, "got none"),
        ({"clients": [np.ones((3, 2))]}, "must be pairs"),
        ({"model": 3}, "model must be a PyTorch module"),
        ({"learning_rate": 0.1}, "compare takes no argument 'learning_rate'"),
        ({"k": 0}, "'training.k' is 0"),
        ({"optimiser": "sdg"}, "did you mean 'sgd'"),
        ({"loss": "mse", "model": lambda: nn.Linear(4, 3)}, "outputs in the shape of y"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        compared(tmp_path, **changed)


SCRIPT = """
import numpy as np
from torch import nn
import fedpace

rng = np.random.default_rng(0)
clients = [(rng.normal(size=(30, 3)), rng.normal(size=30)) for _ in range(4)]
made = lambda: nn.Linear(3, 1)
result = fedpace.compare(model=made, clients=clients, loss="mse", schemes=["uniform"], seeds=2,
                         k=2, rounds=3, local_steps=2, target=1e-9, processes=2)
print(len(result.runs))
"""


def test_a_script_needs_no_guard_and_may_define_anything(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "2"
    assert done.stdout.count("Page:") == 1


def test_rounds_are_watched_logged_and_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboardX", reason="needs pip install 'fedpace[tensorboard]'")
    seen: list[tuple[str, int, int]] = []

    class Seen(fedpace.Callback):
        def on_row(self, run: RunInfo, row: Row) -> None:
            seen.append((run.scheme, run.seed, row.round))

    compared(
        tmp_path, seeds=1, schemes="uniform, pace", log="tensorboard", live=True,
        callbacks=[Seen()],
    )  # fmt: skip
    rounds = (1, 2, 3, 4)
    assert sorted(seen) == [(scheme, 0, at) for scheme in ("pace", "uniform") for at in rounds]
    assert len(list((tmp_path / "logs" / "tensorboard").iterdir())) == 2
    said = capsys.readouterr().err
    assert "live page: http://127.0.0.1:" in said
    assert "0/2 runs, " in said  # without a terminal, too
    assert "2/2 runs, " in said
