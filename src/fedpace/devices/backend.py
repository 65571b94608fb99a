"""A backend whose clients are devices on a network, with measured times."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from fedpace.backends.remote.replies import as_reply
from fedpace.backends.remote.roster import (
    MOST_TOGETHER,
    REMINDER,
    Clock,
    Deadlines,
    Roster,
    wait_until,
)
from fedpace.checks import FloatArray
from fedpace.devices.connections import Response
from fedpace.devices.replies import ReplyScreen
from fedpace.devices.server import DeviceServer
from fedpace.devices.wire import Floats
from fedpace.errors import InputError, TooFewClientsError, join_names
from fedpace.models.model import BaseModel
from fedpace.seeds import Seeds
from fedpace.times.round_times import Presence
from fedpace.training.backend import BaseBackend, Evaluation, Reply, Task
from fedpace.training.share_limit import LARGEST_SHARE, check_share

# Attempts of an evaluation without any answer, each with twice as long to answer.
ATTEMPTS = 3
# Seconds for all devices to join, or to come back, before training starts without them.
GRACE = 30.0
# Seconds between looks at who is free, unless the server reports a change.
LOOK = 0.2
T = TypeVar("T")


class Inbox:
    """Wait for responses, which the server's thread puts in.

    `at_work` are the clients whose responses were not taken yet, `awaited` those of them whose
    responses have not come yet.
    """

    def __init__(self) -> None:
        self.at_work: set[int] = set()
        self.awaited: set[int] = set()
        self._came: SimpleQueue[Response] = SimpleQueue()
        self._sizes: list[int] = []  # of the groups asked since no client was at work
        self._since = 0.0

    def expect(self, clients: Collection[int]) -> None:
        """Note that these clients are asked now, together."""
        if not self.at_work:
            self._sizes, self._since = [], time.monotonic()
        self.at_work.update(clients)
        self.awaited.update(clients)
        self._sizes.append(len(clients))

    def put(self, response: Response) -> None:
        """Put a response in."""
        self.awaited.discard(response.client)
        self._came.put(response)

    def take(self, count: int | None = None) -> tuple[list[Response], float | None]:
        """Wait for the next `count` responses, or for all; return them by client.

        Also return the seconds since responses were last taken, or since clients were asked; None
        if all clients asked together are taken together, because their own seconds determine it.
        """
        count = len(self.at_work) if count is None else min(count, len(self.at_work))
        # By client, so that results do not depend on the order of arrival.
        taken = sorted((self._came.get() for _ in range(count)), key=lambda each: each.client)
        self.at_work.difference_update(each.client for each in taken)
        before, self._since = self._since, time.monotonic()
        return taken, None if self._sizes == [count] or not taken else self._since - before


class DeviceBackend(BaseBackend):
    """Train on devices that hold their own data; client i is the device of the i-th name.

    Make one for each run, and `prepare` it with the run's job; one server serves them in turn.

    Parameters
    ----------
    server : DeviceServer
        The server that devices join.
    model, seeds : BaseModel, Seeds
        For the initial parameters and their number; the data are on the devices.
    deadline : float > 0, optional
        Seconds after which a task or an evaluation goes on without the missing answers. None:
        three times the largest estimated time among the clients asked; see `Deadlines`.
    least, patience : int ≥ 1, float ≥ 0, optional
        Wait while fewer devices are ready, up to `patience` seconds; None: half, rounded up.
    grace : float ≥ 0
        Seconds that `prepare` gives the others to join, or to come back.
    largest_share : float in (0, 1]
        Largest share of the rounds that one device may be in; twice its fair share is always
        allowed. 1: no limit.
    together : float in (0, 1)
        Largest share of the weight that the largest eighth of the devices may hold by their own
        word: see `Roster`.
    say : callable of a str, optional
        Gets messages about what is waited for.

    Examples
    --------
    ::

        with DeviceServer(["device-00", "device-01"], port=7100) as server:
            devices = DeviceBackend(server, model, Seeds(0))
            devices.prepare({"study": …, "seed": 0})     # goes to every device, now or later
            outcome = train(devices, sampler, …)
    """

    asks_to_evaluate = True

    def __init__(
        self,
        server: DeviceServer,
        model: BaseModel,
        seeds: Seeds,
        *,
        deadline: float | None = None,
        least: int | None = None,
        patience: float = 600.0,
        grace: float = GRACE,
        largest_share: float = LARGEST_SHARE,
        together: float = MOST_TOGETHER,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._together = together
        self.largest_share = check_share("largest_share", largest_share)
        n = len(server.names)
        least = math.ceil(n / 2) if least is None else least
        if not 1 <= least <= n:
            raise InputError(f"least must be from 1 to {n}, the number of devices, got {least}")
        self._server, self._model, self._seeds = server, model, seeds
        self._least, self._patience, self._grace = least, patience, grace
        self._say = say or (lambda _: None)
        self._waited = 0.0  # seconds in which too few devices were ready
        self._deadlines = Deadlines(n, deadline)
        self._evaluations = Deadlines(n, deadline)  # these take longer, or shorter
        self._counts = Roster(server.names)
        self._screen = ReplyScreen(model.size, server.refuse, self._counts)
        self._weights: FloatArray | None = None
        self._inbox = self._evaluating = Inbox()
        self._asked: dict[int, int] = {}  # the latest task of each client
        self._steps: dict[int, int | None] = {}  # that it was asked for
        self._late: list[Response] = []

    def prepare(
        self,
        job: dict[str, Any],
        samples: Mapping[str, int] | None = None,
        *,
        given: Mapping[str, int] | None = None,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        """Send the job to every device, and wait until all have answered with their counts.

        Devices that join later get it then. Once `least` are ready, devices that have been away for
        `grace` seconds are not waited for; a connected device is, while it prepares, for as long
        and for up to ten times as long as the slowest other took. Missing devices count as if they
        held as many samples as the mean device.

        Parameters
        ----------
        job : dict of JSON values
            The description of the run for devices.
        samples : mapping of names to counts, optional
            The `samples` of the same run before a restart: the weights follow from these counts,
            and a device with another count is not admitted.
        given : mapping of names to counts, optional
            The operator's counts; a device with another count is not admitted. A count that only
            the device reports weighs at most twelve times the mean of the smaller ones.
        memory : dict, optional
            The `memory` of the same run before a restart.

        Raises
        ------
        TooFewClientsError
            If fewer than `least` are ready after `patience` seconds.
        """
        names = self._server.names
        if unknown := [name for name in (*(samples or ()), *(given or ())) if name not in names]:
            raise InputError(
                f"devices must be those that the run began with, got none named '{unknown[0]}'; "
                "give the same names"
            )
        roster = Roster(names, samples, given=given)
        screen = ReplyScreen(self._model.size, self._server.refuse, roster, memory)
        self._screen = screen
        self._server.give(
            job,
            floats=self._model.size,
            accept=lambda client, answer: screen.count(client, answer.fields.samples),
        )
        self._wait_for_all()
        self._waited = 0.0  # training has not begun
        # A copy: devices that join later do not change the weights of this run.
        self._counts = Roster(
            names, samples or roster.samples, given=given, together=self._together
        )
        self._weights = self._counts.weights
        for client, count in self._counts.counts.items():
            if count != self._counts.count(client):
                said = f"{self._counts.count(client)} weigh for {count:.0f}; give --samples-file"
                self._server.refuse(client, "samples bounded", said)

    @property
    def samples(self) -> dict[str, int]:
        """The counts that the weights follow from, by name; keep them for `prepare`."""
        return self._counts.samples

    @property
    def memory(self) -> dict[str, Any]:
        """What is usual in replies, as JSON values; keep it for `prepare`."""
        return self._screen.memory

    @property
    def refusals(self) -> Counter[tuple[int, str]]:
        """How often something of a client was refused, by client and reason."""
        return self._server.refusals

    @property
    def measured_times(self) -> FloatArray:
        """The running estimate of t_i, in seconds; NaN for a client that never answered."""
        return self._deadlines.estimates

    @property
    def awaited(self) -> list[str]:
        """The devices that are expected to join, to train or to evaluate now."""
        names = self._server.names
        if self._weights is None:
            free = set(self._server.free)
            return [name for client, name in enumerate(names) if client not in free]
        return [names[i] for i in sorted(self._inbox.awaited | self._evaluating.awaited)]

    @property
    def weights(self) -> FloatArray:
        """p_i = n_i / Σ n, from the counts that the devices report."""
        if self._weights is None:
            raise InputError("weights must be known, got none yet; call prepare first")
        return self._weights

    @property
    def usual_times(self) -> None:
        """None: times are measured."""

    def initial(self) -> FloatArray:
        """Return the model's initial parameters."""
        return self._model.initial(self._seeds.stream("init"))

    def present(self, round_index: int, seconds: float) -> Presence:  # noqa: ARG002
        """Return the clients that are free; without any at work wait for `least` of them.

        Raises
        ------
        TooFewClientsError
            If there are fewer after `patience` seconds.
        """
        mask = np.zeros(len(self._server.names), dtype=np.bool_)
        held = set(self._screen.first.clients)
        if at_work := self._inbox.at_work:  # one of these will be back soon
            mask[[client for client in self._server.free if client not in at_work | held]] = True
            return Presence(mask)
        here = self._wait_for_least()
        mask[[client for client in here if client not in held] or here] = True
        waited, self._waited = self._waited, 0.0
        return Presence(mask, waited)

    def submit(self, task: Task) -> None:
        """Send the model to the clients of a task, without waiting."""
        self._learn_from_late()
        clients, steps = task.clients.tolist(), task.common_steps
        self._screen.first.drop(clients)
        self._inbox.expect(clients)
        number = self._server.ask(
            "train",
            clients,
            _as_floats(task.parameters),
            self._inbox.put,
            seconds=self._deadlines.wait(task.clients),
            most_floats=self._model.size,
            round=task.round_index,
            learning_rate=task.learning_rate,
            local_steps=steps or 0,
        )
        self._steps.update(dict.fromkeys(clients, steps))
        self._asked.update(dict.fromkeys(clients, number))

    def collect(self, count: int | None = None) -> Reply:
        """Wait for the next `count` of the clients at work, or for all, each until its deadline.

        A round lasts as long as its slowest reply, or as the longest wait for a missing one. If
        only some are waited for, the time since the last replies counts, late updates are returned
        too, and the first updates are `held` until they can be judged together.
        """
        taken, waited = self._inbox.take(count)
        late = [] if count is None else self._take_late()
        judged = self._release(taken, late, everything=count is None)
        accepted = [
            each.confirm_steps(self._steps.get(each.client))
            for each in self._screen.updates(judged)
        ]
        overdue = {each.client for each in late}
        for each in accepted:
            if each.client not in overdue:  # these were observed already
                self._deadlines.observe(each.client, each.seconds)
        here = {each.client: each.seconds for each in accepted}
        counted = len(judged) == len(taken) and all(
            here.get(each.client) == each.seconds for each in taken
        )
        if waited is None and not counted:  # by the clock, even if a client's time is bounded
            waited = max(each.seconds for each in taken)
        missing = [each for each in judged if each.client not in here]
        refused = [each.client for each in missing if each.problem not in ("lost", "late")]
        return as_reply(
            accepted,
            length=self._model.size,
            refused=refused,
            waited=waited,
            missing=[each.client for each in missing],
            held=self._screen.first.clients,
        )

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        """Ask all free clients for their loss and accuracy; None if not `due`.

        The mean is over the clients that answer; those at work count with their latest evaluation.
        If the loss of most clients is not finite, the model has diverged, and the loss is NaN.
        """
        if not due:
            return None
        sent = _as_floats(parameters)
        inbox = self._evaluating = Inbox()
        for attempt in range(ATTEMPTS):
            clients = self._wait_for_least()
            self._learn_from_late()
            seconds = 2**attempt * self._evaluations.wait(np.array(clients))
            inbox.expect(clients)
            self._server.ask("evaluate", clients, sent, inbox.put, seconds=seconds)
            came, _ = inbox.take()
            for each in came:
                if not each.problem:
                    self._evaluations.observe(each.client, each.seconds)
            if (evaluation := self._screen.evaluation(came, self._inbox.at_work)) is not None:
                return evaluation
        raise TooFewClientsError(
            f"at least one device must evaluate the model, got none in {ATTEMPTS} attempts, the "
            f"last of {seconds:g} s; look at the devices, or give them longer with --deadline, and "
            "run the same command again to go on"
        )

    def _release(
        self, taken: list[Response], late: list[Response], *, everything: bool
    ) -> list[Response]:
        """Return what can be judged now: failures, and replies that need not be held."""
        failed = [each for each in taken if each.problem]
        fine = {each.client: each for each in (*late, *taken) if not each.problem}
        reachable = () if everything else {*self._server.free, *self._inbox.at_work}
        first = self._screen.first
        return failed + first.release(fine, reachable=reachable, failed=len(failed))

    def _learn_from_late(self) -> None:
        for response in self._server.late():
            evaluated = response.answer.kind == "counts"
            deadlines = self._evaluations if evaluated else self._deadlines
            deadlines.observe(response.client, response.seconds)
            if not evaluated and response.client in self._asked:
                self._late.append(response)

    def _take_late(self) -> list[Response]:
        """Return the late updates of clients that have had no other task since, each once."""
        self._learn_from_late()
        late, self._late = self._late, []
        now = [each for each in late if each.answer.task == self._asked[each.client]]
        return [each._replace(problem="") for each in now]

    def _wait_for_all(self) -> None:
        """Wait until all are ready, or enough are and no other is expected soon."""
        try:
            self._wait(self._is_settled, quiet=REMINDER)
        except TooFewClientsError:
            if len(self._server.free) < self._least:
                raise

    def _is_settled(self) -> bool | None:
        ready, server = len(self._server.free), self._server
        if ready < self._least:
            return None
        return ready == len(server.names) or not server.expected(self._grace) or None

    def _wait_for_least(self) -> list[int]:
        """Return the free clients once there are enough, together with those at work."""

        def look() -> list[int] | None:
            free = self._server.free  # some may have answers that were not taken yet
            return free if free and len({*free, *self._inbox.at_work}) >= self._least else None

        return self._wait(look)

    def _wait(self, look: Callable[[], T | None], *, quiet: float = 0.0) -> T:
        def pause(seconds: float) -> None:
            began = time.monotonic()
            self._server.wait(seconds)
            self._waited += time.monotonic() - began

        return wait_until(
            look,
            patience=self._patience,
            pause=LOOK,
            missing=self._describe_missing,
            remedy="start them, and run the same command again to go on",
            say=self._say,
            quiet=quiet,
            clock=Clock(sleep=pause),
        )

    def _describe_missing(self) -> str:
        names, free = self._server.names, self._server.free
        missing = join_names([name for i, name in enumerate(names) if i not in free], most=5)
        return (
            f"at least {self._least} of {len(names)} devices must be ready, "
            f"got {len(free)} (not {missing})"
        )


def _as_floats(parameters: FloatArray) -> Floats:
    with np.errstate(over="ignore"):  # a diverged model is detected by its loss
        return parameters.astype(np.float32)
