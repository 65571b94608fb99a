"""Without Flower everything else works, and asking for it says what to install."""

import importlib.util
import subprocess
import sys

import pytest

WITHOUT = "import sys; sys.modules['flwr'] = None; import fedpace; import fedpace.flower"


@pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None,
    reason="all tests of fedpace.flower are left out: pip install 'fedpace[flower]'",
)
def test_without_flower_the_extra_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 1
    assert "MissingExtraError" in done.stderr
    assert "pip install 'fedpace[flower]'" in done.stderr
