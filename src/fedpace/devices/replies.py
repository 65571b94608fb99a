"""Check the answers of devices before they count, and learn how long to wait for them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median_low
from typing import Any

import numpy as np

from fedpace.backends.local import LocalEvaluation
from fedpace.backends.remote.replies import Accepted
from fedpace.backends.remote.roster import Roster
from fedpace.backends.remote.screening import (
    BadReplyError,
    Border,
    Claims,
    FirstReplies,
    finite_number,
    whole_number,
)
from fedpace.devices.connections import Response
from fedpace.training.backend import Difference, Evaluation
from fedpace.training.updates import length_of

# Held-out samples count for at most this times the usual number and share.
MOST_HELD_OUT = 10.0


class ReplyScreen:
    """Refuse or bound the answers to one job.

    Parameters
    ----------
    length : int
        Numbers in an update.
    refuse : callable
        Gets client, reason and details of everything that is refused or bounded.
    roster : Roster
        Learns how many samples each client has.
    memory : dict, optional
        The `memory` of the same run before a restart.
    """

    def __init__(
        self,
        length: int,
        refuse: Callable[[int, str, str], None],
        roster: Roster,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self._length = length
        self._refuse = refuse
        self._roster = roster
        self._border = Border(memory)
        self.first = FirstReplies[Response](self._border)
        self._held_out: dict[int, int] = {}
        self._latest: dict[int, LocalEvaluation] = {}

    @property
    def memory(self) -> dict[str, Any]:
        """What is usual in replies, as JSON values."""
        return self._border.memory

    def count(self, client: int, value: object) -> bool:
        """Return whether a device's number of samples is valid, and the same as before."""
        try:
            samples = self._border.count(value)
            before = self._roster.count(client)
            if before not in (None, samples):
                raise BadReplyError(f"{samples} samples, not {before} as known before")
        except BadReplyError as error:
            self._refuse(client, "samples", str(error))
            return False
        self._roster.learn(client, samples)
        return True

    def updates(self, responses: Sequence[Response]) -> list[Accepted]:
        """Return the updates that count."""
        came = [response for response in responses if not response.problem]
        claims = [*map(self._claims, came)]
        self._border.meet(claims)
        found = map(self._update, came, (said.length for said in claims))
        return [each for each in found if each is not None]

    def _claims(self, response: Response) -> Claims:
        said, floats = response.answer.fields, response.answer.floats
        fits = floats.shape == (self._length,)
        return Claims(
            response.client,
            length_of(floats) if fits else None,
            said.grad_norm,
            _loss_in(response),
            response.seconds,
        )

    def _update(self, response: Response, length: float | None) -> Accepted | None:
        said, client, floats = response.answer.fields, response.client, response.answer.floats
        reason = "update"
        try:
            if length is None:
                raise BadReplyError(f"the update has shape {floats.shape}, not ({self._length},)")
            factor = self._border.update(client, length)
            reason = "gradient norm"
            grad_norm = self._border.grad_norm(client, said.grad_norm, length)
            reason = "loss"
            loss = self._loss(response)
            reason = "seconds"
            computing = finite_number("the time of computing", said.computing_seconds)
        except BadReplyError as error:
            self._refuse(client, reason, str(error))
            self._border.forget(client)
            return None
        update = Difference([floats], None, floats.dtype, length**2)
        if factor < 1:
            self._refuse(client, "update bounded", f"its length is {length:.3g}")
        if grad_norm != said.grad_norm:
            self._refuse(client, "gradient norm bounded", f"{said.grad_norm:g}")
        seconds = self._border.took(client, response.seconds)
        if seconds != response.seconds:
            self._refuse(client, "time bounded", f"{response.seconds:.3g} s")
        if not 0 <= computing <= response.seconds:
            self._refuse(client, "seconds bounded", f"{computing:g}")
        return Accepted(
            client,
            update.times(factor),
            seconds,
            grad_norm,
            loss,
            min(max(computing, 0.0), response.seconds),
            response.bytes_down,
            response.answer.length,
            said.local_steps,
        )

    def evaluation(
        self, responses: Sequence[Response], at_work: Collection[int] = ()
    ) -> Evaluation | None:
        """Return F(w) and the accuracy over the clients that answered, or None without any.

        Clients `at_work`, which could not be asked, count with their latest evaluation: without
        them, slow clients would hardly ever count.
        """
        came = [response for response in responses if not response.problem]
        losses = [_loss_in(response) for response in came]
        if came and 2 * losses.count(None) > len(came):
            return Evaluation(math.nan, math.nan)
        for response in came:  # note all before any is judged by the others
            with contextlib.suppress(BadReplyError):
                self._border.loss(response.client, _loss_in(response))
        shares = {each.client: share for each in came if (share := self._share(each)) is not None}
        if not shares:
            return None
        busy = {client: self._latest[client] for client in at_work if client in self._latest}
        self._latest.update(shares)
        shares = busy | shares
        samples_of = self._roster.counts  # every admitted client has one
        rows = [(samples_of[client], *share) for client, share in self._bound(shares)]
        samples, means, correct, held_out = np.array(rows, dtype=np.float64).T
        accuracy = correct.sum() / held_out.sum() if held_out.any() else math.nan
        # Divided first, so that large numbers do not overflow.
        return Evaluation(float((samples / samples.sum()) @ means), float(accuracy))

    def _share(self, response: Response) -> LocalEvaluation | None:
        said, client = response.answer.fields, response.client
        try:
            loss = self._loss(response)
            held_out = whole_number("what is held out", said.held_out)
            correct = whole_number("what is right", said.correct)
            if correct > held_out or held_out != self._held_out.get(client, held_out):
                raise BadReplyError(f"{correct} right of {held_out} held out")
        except BadReplyError as error:
            self._refuse(client, "evaluation", str(error))
            return None
        self._held_out[client] = held_out
        return LocalEvaluation(loss, correct, held_out)

    def _bound(self, shares: Mapping[int, LocalEvaluation]) -> list[tuple[int, LocalEvaluation]]:
        """Limit how much the held-out samples of one client count."""
        known = {client: share.held_out for client, share in shares.items() if share.held_out}
        if not known:
            return list(shares.items())
        # The lower median: of two devices, the larger claim is not what is usual.
        number, samples_of = median_low(known.values()), self._roster.counts
        part = median_low(count / samples_of[client] for client, count in known.items())
        bounded = []
        for client, share in shares.items():
            most = int(MOST_HELD_OUT * max(number, part * samples_of[client]))
            if share.held_out > most:
                self._refuse(client, "held out bounded", f"{share.held_out}")
                right = share.correct * most // share.held_out
                share = share._replace(correct=right, held_out=most)
            bounded.append((client, share))
        return bounded

    def _loss(self, response: Response) -> float:
        said = _loss_in(response)
        loss = self._border.loss(response.client, said)
        if loss != said:
            self._refuse(response.client, "loss bounded", f"{said:g}")
        return loss


def _loss_in(response: Response) -> float | None:
    """Return the loss of an answer, if it has a finite one."""
    loss: float = response.answer.fields.loss
    return loss if response.answer.fields.HasField("loss") and math.isfinite(loss) else None
