"""Sample counts as the operator knows them."""

from pathlib import Path

import pytest

from fedpace.devices.device import read_samples
from fedpace.errors import InputError


def test_reads_names_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text("name,samples\nkitchen,120\n\nattic,7\n")
    assert read_samples(path) == {"kitchen": 120, "attic": 7}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1 must be 'name,samples'"),
        ("kitchen,120\n", "line 1 must be 'name,samples'"),
        ("name,samples\nkitchen,0\n", "line 2 must be a new name and a positive integer"),
        ("name,samples\nkitchen,many\n", "line 2 must be"),
        ("name,samples\nkitchen,1,2\n", "line 2 must be"),
        ("name,samples\nkitchen,1\nkitchen,2\n", "line 3 must be"),
        ('name,samples\n"kitchen,1\n', "cannot be read"),
    ],
)
def test_says_which_line_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_samples(path)


def test_says_that_there_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.csv: cannot be read"):
        read_samples(tmp_path / "none.csv")
