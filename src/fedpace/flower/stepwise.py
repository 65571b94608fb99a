"""Rounds one at a time, for Flower's own loop or a user's; draws and sums are those of ours."""

from __future__ import annotations

import math
from collections.abc import Iterable

from flwr.app import ArrayRecord, Message

from fedpace.errors import InputError
from fedpace.estimation.adaptive import blank_profile, known_so_far
from fedpace.flower.exchange import Arrival
from fedpace.flower.grid_backend import GridBackend
from fedpace.flower.settings import Settings
from fedpace.rounds.loop import completed, drawn, row_of
from fedpace.rounds.rows import Row
from fedpace.rounds.state import State
from fedpace.sampling.design import Design, Draw
from fedpace.sampling.schemes import SCHEMES, WITHOUT_PILOTS
from fedpace.seeds import Seeds


class Stepwise:
    """Draw at `configure_train`, aggregate at `aggregate_train`.

    Parameters
    ----------
    backend : GridBackend
        Where.
    settings : Settings
        The strategy's.
    """

    def __init__(self, backend: GridBackend, settings: Settings) -> None:
        self.backend, self.settings = backend, settings
        self.rows: list[Row] = []
        self._rng = Seeds(settings.seed).stream("draw")
        self._design: Design | None = None
        self._state = State(backend.initial(), 0, 0.0)
        self._draw: Draw | None = None
        self._sent = 0.0
        self._began = 0.0

    def draw(self, server_round: int, arrays: ArrayRecord) -> Draw:
        """Draw a round's clients."""
        backend = self.backend
        backend.present()  # before the first design: it needs to know who there is
        backend.round, backend.sent = server_round, backend.layout.vector(arrays)
        self._state = self._state._replace(parameters=backend.sent)
        draw = drawn(backend, self._current_design(), self._rng)
        while draw is None:  # all who are there came since: solve for them
            self._design = None
            draw = drawn(backend, self._current_design(), self._rng)
        self._draw, self._began = draw, backend.clock.now()
        return draw

    def sent(self, messages: list[Message]) -> list[Message]:
        """Note when the messages were made, and return them."""
        self._sent = min((each.metadata.created_at for each in messages), default=0.0)
        return messages

    def complete(self, replies: Iterable[Message]) -> ArrayRecord:
        """Aggregate what came back, and return the new model."""
        if self._draw is None:
            raise InputError("configure_train must come before aggregate_train, got none; call it")
        waited = self.backend.clock.now() - self._began
        asked = set(self.backend.fleet.nodes(self._draw.clients.tolist()))
        arrivals = {
            node: Arrival(node, reply, self._seconds(reply, waited))
            for reply in replies
            if (node := reply.metadata.src_node_id) in asked  # whoever was not asked is not heard
        }
        reply = self.backend.accepted(
            arrivals.values(), self._draw, self._state, bytes_down=0, waited=waited
        )
        self._state, weights, missing = completed(
            self._state, self._draw, reply, n=self.backend.weights.size
        )
        self.rows.append(row_of("train", self._state, reply, weights, missing, math.nan))
        self._draw = None
        return self.backend.layout.record(self._state.parameters)

    def _current_design(self) -> Design:
        """Return what to draw from: weighted while warming up, then solved for now and then.

        What looks at sample counts alone is taken anew in every round: they may be news.
        """
        settings, trained = self.settings, len(self.rows) - self.settings.pilots.rounds
        if settings.scheme in WITHOUT_PILOTS or trained < 0:
            name = settings.scheme if settings.scheme in WITHOUT_PILOTS else "weighted"
            return SCHEMES[name](blank_profile(self.backend), settings.k)
        if self._design is None or trained % settings.refresh == 0:
            profile = known_so_far(self.backend, self.rows, settings.c_over_s0)
            scheme = SCHEMES[settings.scheme]
            self._design = scheme(profile, settings.k, max_weight=settings.max_weight)
        return self._design

    def _seconds(self, reply: Message, waited: float) -> float:
        """Return the seconds until the reply was made, by the client's clock where that can be.

        Flower's loop does not say when a reply arrived. A client whose clock is wrong counts as
        the whole wait.
        """
        seconds = reply.metadata.created_at - self._sent
        return seconds if 0 < seconds <= waited else waited
