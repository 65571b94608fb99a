"""What devices say is looked at here before it counts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np

from fedpace.checks import FloatArray
from fedpace.network.connection import Answer
from fedpace.remote.screening import BadReplyError, Border
from fedpace.rounds.backend import Evaluation

# Who claims to hold out more than so many times what is usual, both as a number and as a share of
# what it trains on, has no larger say in the accuracy.
MOST_HELD_OUT = 10.0


class Accepted(NamedTuple):
    """An update that counts; `computing` is the share of the seconds spent on training."""

    client: int
    update: FloatArray
    seconds: float
    grad_norm: float
    loss: float
    computing: float
    bytes_down: int
    bytes_up: int


class _Share(NamedTuple):
    """A client's share in an evaluation."""

    client: int
    samples: int
    loss: float
    correct: int
    held_out: int


class Screen:
    """Look at the answers of one job, and refuse or bound what cannot be right.

    Parameters
    ----------
    length : int
        The number of parameters.
    refuse : callable of (client, reason, details)
        Told of everything that is refused or bounded.
    samples : mapping of clients to counts, optional
        What is known of the number of samples already.
    """

    def __init__(
        self,
        length: int,
        refuse: Callable[[int, str, str], None],
        samples: Mapping[int, int] | None = None,
    ) -> None:
        self._length = length
        self._refuse = refuse
        self._border = Border()
        self._samples: dict[int, int] = dict(samples or {})
        self._held_out: dict[int, int] = {}

    @property
    def samples(self) -> dict[int, int]:
        """n_i of the clients that have said it."""
        return self._samples.copy()  # devices may join meanwhile

    def count(self, client: int, value: object) -> bool:
        """Return whether a device's number of samples is one, and the one that it said before."""
        try:
            samples = self._border.count(value)
            if samples != self._samples.get(client, samples):
                raise BadReplyError(f"{samples} samples, not {self._samples[client]} as before")
        except BadReplyError as error:
            self._refuse(client, "samples", str(error))
            return False
        self._samples[client] = samples
        return True

    def updates(self, answers: Sequence[Answer]) -> list[Accepted]:
        """Return the updates that count."""
        came = [answer for answer in answers if not answer.problem]
        self._learn_losses(came)
        return [each for each in map(self._update, came) if each is not None]

    def _update(self, answer: Answer) -> Accepted | None:
        header, client = answer.frame.header, answer.client
        reason = "update"
        try:
            update = self._border.update(client, answer.frame.floats, length=self._length)
            reason = "gradient norm"
            grad_norm = self._border.grad_norm(client, header.get("grad_norm"))
            reason = "loss"
            loss = self._loss(answer)
            reason = "seconds"
            computing = _seconds(header.get("computing_seconds"))
        except BadReplyError as error:
            self._refuse(client, reason, str(error))
            return None
        if grad_norm < header["grad_norm"]:
            self._refuse(client, "gradient norm bounded", f"{header['grad_norm']:g}")
        if not 0 <= computing <= answer.seconds:
            self._refuse(client, "seconds bounded", f"{computing:g}")
        computing = min(max(computing, 0.0), answer.seconds)
        return Accepted(
            client,
            update,
            answer.seconds,
            grad_norm,
            loss,
            computing,
            answer.bytes_down,
            answer.frame.length,
        )

    def evaluation(self, answers: Sequence[Answer]) -> Evaluation | None:
        """Return F(w) and the accuracy over those who answered, or None if nobody did."""
        came = [answer for answer in answers if not answer.problem]
        losses = [answer.frame.header.get("loss") for answer in came]
        if came and 2 * losses.count(None) > len(came):
            return Evaluation(math.nan, math.nan)
        self._learn_losses(came)
        shares = [share for share in map(self._share, came) if share is not None]
        if not shares:
            return None
        _, samples, means, correct, held_out = np.array(self._bounded(shares), dtype=np.float64).T
        accuracy = correct.sum() / held_out.sum() if held_out.any() else math.nan
        # Divided first: the largest of numbers must not overflow.
        return Evaluation(float((samples / samples.sum()) @ means), float(accuracy))

    def _share(self, answer: Answer) -> _Share | None:
        header, client = answer.frame.header, answer.client
        try:
            loss = self._loss(answer)
            held_out = _whole(header.get("held_out"))
            correct = _whole(header.get("correct"))
            if correct > held_out or held_out != self._held_out.get(client, held_out):
                raise BadReplyError(f"{correct} right of {held_out} held out")
        except BadReplyError as error:
            self._refuse(client, "evaluation", str(error))
            return None
        self._held_out[client] = held_out
        return _Share(client, self._samples[client], loss, correct, held_out)

    def _bounded(self, shares: Sequence[_Share]) -> list[_Share]:
        """Let nobody's held-out samples count for far more than the others' do."""
        known = [share for share in shares if share.held_out]
        if not known:
            return list(shares)
        # The lower median: of two devices, the one that claims more is not what is usual.
        number = median_low(share.held_out for share in known)
        part = median_low(share.held_out / share.samples for share in known)
        bounded = []
        for share in shares:
            most = int(MOST_HELD_OUT * max(number, part * share.samples))
            if share.held_out > most:
                self._refuse(share.client, "held out bounded", f"{share.held_out}")
                right = share.correct * most // share.held_out
                share = share._replace(correct=right, held_out=most)
            bounded.append(share)
        return bounded

    def _learn_losses(self, answers: Sequence[Answer]) -> None:
        """Let all losses be known before any is judged by the others'."""
        for answer in answers:
            with contextlib.suppress(BadReplyError):
                self._border.loss(answer.client, answer.frame.header.get("loss"))

    def _loss(self, answer: Answer) -> float:
        said: Any = answer.frame.header.get("loss")
        loss = self._border.loss(answer.client, said)
        if loss != float(said):
            self._refuse(answer.client, "loss bounded", f"{said:g}")
        return loss


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadReplyError(f"the computing seconds are no finite number: {value!r:.40}")
    return float(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise BadReplyError(f"a count is no whole number: {value!r:.40}")
    return value
