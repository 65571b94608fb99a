"""How a directory of runs was made."""

import json
import platform
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import fedpace
from fedpace.files import made_folder, write_text
from fedpace.studies.study import Study


def write_record(out: Path, study: Study, schemes: Sequence[str], seeds: Sequence[int]) -> None:
    """Write study.json: the configuration, the versions, and the command to run it again."""
    packages = {name: version(name) for name in ("numpy", "scipy", "pydantic")}
    python = {"python": platform.python_version(), "platform": platform.platform()}
    record = {
        "study": study.model_dump(mode="json"),
        "schemes": list(schemes),
        "seeds": [seeds[0], seeds[-1]],
        "command": shlex.join(["fedpace", *sys.argv[1:]]),
        "versions": {"fedpace": fedpace.__version__} | packages | python,
    }
    write_text(made_folder(out, "--out") / "study.json", json.dumps(record, indent=2) + "\n")
