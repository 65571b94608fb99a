"""Waiting for clients, on a clock that does not wait."""

import pytest

from fedpace.backends.remote.roster import Clock, wait_until
from fedpace.errors import TooFewClientsError


class Watch:
    """A clock that goes on only while somebody sleeps; `there` comes after so many seconds."""

    def __init__(self, comes: float) -> None:
        self.now, self.comes = 0.0, comes
        self.said: list[tuple[float, str]] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, *, patience: float = 60.0, quiet: float = 0.0) -> str:
        return wait_until(
            lambda: "there" if self.now >= self.comes else None,
            patience=patience,
            pause=0.5,
            missing=lambda: "a client must be there, got none",
            remedy="start it",
            say=lambda message: self.said.append((self.now, message)),
            quiet=quiet,
            clock=Clock(lambda: self.now, self.sleep),
        )


def test_returns_at_once_and_silently_what_is_there() -> None:
    watch = Watch(comes=0.0)
    assert watch.wait() == "there"
    assert (watch.now, watch.said) == (0.0, [])


@pytest.mark.parametrize(("quiet", "moments"), [(0.0, [0, 10, 20]), (5.0, [5, 15])])
def test_says_what_is_waited_for_and_reminds_every_ten_seconds(
    quiet: float, moments: list[int]
) -> None:
    watch = Watch(comes=24.0)
    assert watch.wait(quiet=quiet) == "there"
    assert watch.now == 24.0
    message = "waiting for clients: a client must be there, got none"
    assert watch.said == [(moment, message) for moment in moments]


def test_says_in_the_end_what_is_missing_and_what_to_do() -> None:
    watch = Watch(comes=99.0)
    said = r"^a client must be there, got none after 7 s; start it$"
    with pytest.raises(TooFewClientsError, match=said):
        watch.wait(patience=7.0)
    assert watch.now == 7.0
