"""The examples' script, imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples" / "flower"


def loaded(path: Path) -> ModuleType:
    """Import a script."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


local_federation = loaded(EXAMPLES / "local_federation.py")
