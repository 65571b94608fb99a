"""A backend whose clients are devices on a network: the clock is measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedpace.checks import FloatArray
from fedpace.errors import InputError, TooFewClientsError
from fedpace.models.model import Model
from fedpace.network.attendance import GRACE, Attendance, Deadlines, Inbox
from fedpace.network.connection import Response
from fedpace.network.device_server import DeviceServer
from fedpace.network.screen import Screen
from fedpace.network.wire import Floats
from fedpace.remote.replies import as_reply
from fedpace.remote.roster import Roster
from fedpace.rounds.backend import Evaluation, Reply, Task
from fedpace.rounds.limits import LARGEST_SHARE, checked_share
from fedpace.seeds import Seeds
from fedpace.times.round_times import Presence

# Tries of an evaluation that nobody answers, each with twice as long to answer.
ATTEMPTS = 3


class Devices:
    """Train on devices that hold their own data; client i is the device of the i-th name.

    Make one for each run, and `prepare` it with the run's job; one server carries them in turn.

    Parameters
    ----------
    server : DeviceServer
        Whom the devices join.
    model, seeds : Model, Seeds
        For the initial parameters and their number; the data are not here.
    deadline : float > 0, optional
        Seconds after which a task, or an evaluation, does without those who have not answered.
        None: three times the largest estimated time among those asked; see `Deadlines`.
    least, patience : int ≥ 1, float ≥ 0, optional
        Wait while fewer devices are there, up to `patience` seconds; None: half, rounded up.
    grace : float ≥ 0
        Seconds that `prepare` gives the others to join, or to come back.
    largest_share : float in (0, 1]
        Of the rounds that one device may be in; twice its fair share is always allowed. 1: no
        limit.
    say : callable of a str, optional
        Told what is waited for.

    Examples
    --------
    ::

        with DeviceServer(["device-00", "device-01"], port=7100) as server:
            devices = Devices(server, model, Seeds(0))
            devices.prepare({"study": …, "seed": 0})     # goes to every device, now or later
            outcome = train(devices, sampler, …)
    """

    asks_to_evaluate = True

    def __init__(
        self,
        server: DeviceServer,
        model: Model,
        seeds: Seeds,
        *,
        deadline: float | None = None,
        least: int | None = None,
        patience: float = 600.0,
        grace: float = GRACE,
        largest_share: float = LARGEST_SHARE,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.largest_share = checked_share("largest_share", largest_share)
        n = len(server.names)
        least = math.ceil(n / 2) if least is None else least
        if not 1 <= least <= n:
            raise InputError(f"least must be from 1 to {n}, the number of devices, got {least}")
        self._server, self._model, self._seeds = server, model, seeds
        self._attendance = Attendance(server, least, patience, grace, say or (lambda _: None))
        self._deadlines = Deadlines(n, deadline)
        self._evaluations = Deadlines(n, deadline)  # these last longer, or shorter
        self._counts = Roster(server.names)
        self._screen = Screen(model.size, server.refuse, self._counts)
        self._weights: FloatArray | None = None
        self._inbox = self._evaluating = Inbox()
        self._asked: dict[int, int] = {}  # the latest task of each client
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

        Those who join later get it then. Once `least` are ready, whoever has been away for `grace`
        seconds is not waited for; a device that has joined is, while it prepares, for as long and
        for up to ten times as long as the slowest of the others took. Those who are missing then
        count as if they held as many samples as the mean device.

        Parameters
        ----------
        job : dict of JSON values
            What the devices are told of the run.
        samples : mapping of names to counts, optional
            The `samples` of the same run before a restart: the weights follow from these counts,
            and a device that names another is not let in.
        given : mapping of names to counts, optional
            What the operator says; a device that names another is not let in. A count that only
            the device says weighs for twelve times the mean of those who hold less at most.
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
        screen = Screen(self._model.size, self._server.refuse, roster, memory)
        self._screen = screen
        self._server.give(
            job,
            floats=self._model.size,
            accept=lambda client, answer: screen.count(client, answer.fields.samples),
        )
        self._attendance.wait_for_all()
        self._attendance.waited = 0.0  # training has not begun
        # A copy: whoever joins later does not change the weights of this run.
        self._counts = Roster(names, samples or roster.samples, given=given)
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
        """The running estimate of t_i, in seconds; NaN where a client never answered."""
        return self._deadlines.estimates

    @property
    def awaited(self) -> list[str]:
        """The names of those who are waited for now: to join, to train or to evaluate."""
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
        """Return who is there, prepared, and owes no answer; with nobody at work wait for `least`.

        Raises
        ------
        TooFewClientsError
            If there are fewer after `patience` seconds.
        """
        mask = np.zeros(len(self._server.names), dtype=np.bool_)
        if at_work := self._inbox.at_work:  # whoever comes back soon need not be waited for
            mask[[client for client in self._server.free if client not in at_work]] = True
            return Presence(mask)
        mask[self._attendance.wait_for_least(at_work)] = True
        waited, self._attendance.waited = self._attendance.waited, 0.0
        return Presence(mask, waited)

    def submit(self, task: Task) -> None:
        """Send the model to the clients of a task, and do not wait."""
        self._learn_from_the_late()
        clients = task.clients.tolist()
        self._inbox.expect(clients)
        number = self._server.ask(
            "train",
            clients,
            _sent(task.parameters),
            self._inbox.put,
            seconds=self._deadlines.wait(task.clients),
            most_floats=self._model.size,
            round=task.round_index,
            learning_rate=task.learning_rate,
        )
        self._asked.update(dict.fromkeys(clients, number))

    def collect(self, count: int | None = None) -> Reply:
        """Wait for the next `count` of those at work, or for all, each until its deadline.

        A round lasts as long as its slowest reply, or as the longest wait for one that did not
        come. Where only some are waited for, what passed since the last replies counts, and updates
        that came after their deadline are handed over too.
        """
        came, waited = self._inbox.take(count)
        accepted = self._screen.updates(came)
        for each in accepted:
            self._deadlines.observe(each.client, each.seconds)
        here = {each.client: each.seconds for each in accepted}
        missing = [each for each in came if each.client not in here]
        counted = all(here.get(each.client) == each.seconds for each in came)
        if waited is None and not counted:  # by the clock, whatever a client's time counts for
            waited = max(each.seconds for each in came)
        refused = [each.client for each in missing if each.problem not in ("lost", "late")]
        if count is not None:
            accepted += self._screen.updates(self._taken_late())
        return as_reply(
            accepted,
            length=self._model.size,
            refused=refused,
            waited=waited,
            missing=[each.client for each in missing],
        )

    def _taken_late(self) -> list[Response]:
        """Return the late updates of tasks that nobody has done since, each once."""
        self._learn_from_the_late()
        late, self._late = self._late, []
        now = [each for each in late if each.answer.task == self._asked[each.client]]
        return [each._replace(problem="") for each in now]

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:
        """Ask all who are free for their loss and for what they classify right; None if not `due`.

        The mean is over those who answer; those at work count with what they said last. A model
        whose loss is not finite on most of them has diverged: the loss is NaN.
        """
        if not due:
            return None
        sent = _sent(parameters)
        inbox = self._evaluating = Inbox()
        for attempt in range(ATTEMPTS):
            clients = self._attendance.wait_for_least(self._inbox.at_work)
            self._learn_from_the_late()
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

    def _learn_from_the_late(self) -> None:
        for response in self._server.late():
            evaluated = response.answer.kind == "counts"
            deadlines = self._evaluations if evaluated else self._deadlines
            deadlines.observe(response.client, response.seconds)
            if not evaluated and response.client in self._asked:
                self._late.append(response)


def _sent(parameters: FloatArray) -> Floats:
    with np.errstate(over="ignore"):  # a model that has diverged so far is said to have
        return parameters.astype(np.float32)
