"""A backend whose clients are devices on a network: the clock is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.checks import FloatArray
from fedpace.errors import InputError, TooFewClientsError
from fedpace.models.model import Model
from fedpace.network.attendance import GRACE, Attendance
from fedpace.network.connection import Answer
from fedpace.network.deadlines import Deadlines
from fedpace.network.replies import Accepted, Screen
from fedpace.network.server import DeviceServer
from fedpace.network.wire import Floats
from fedpace.rounds.backend import Evaluation, Reply
from fedpace.sampling.design import Draw
from fedpace.seeds import Seeds

# So often is an evaluation that nobody answers tried, each time with twice as long to answer.
ATTEMPTS = 3


class Devices:
    """Train on devices that hold their own data; client i is the device of the i-th name.

    One server carries any number of these, one after another: make a `Devices` for each run,
    and `prepare` it with the run's job.

    Parameters
    ----------
    server : DeviceServer
        Whom the devices join.
    model, seeds : Model, Seeds
        For the initial parameters and their number; the data are not here.
    deadline : float > 0, optional
        Seconds after which a round, or an evaluation, does without those who have not answered.
        None: three times the largest estimated time among those asked; see `Deadlines`.
    least : int ≥ 1, optional
        While fewer devices are there, wait; None: half of them, rounded up.
    patience : float ≥ 0
        Seconds to wait for that many.
    grace : float ≥ 0
        Seconds that `prepare` gives the others to join, or to come back.
    say : callable of a str, optional
        Told what is waited for.

    Examples
    --------
    ::

        with DeviceServer(["device-00", "device-01"], port=7100) as server:
            devices = Devices(server, model, Seeds(0))
            devices.prepare({"study": …, "seed": 0})     # goes to every device, now or later
            outcome = run_known(devices, …)
    """

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
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._server, self._model, self._seeds = server, model, seeds
        self._attendance = Attendance(server, least, patience=patience, grace=grace, say=say)
        self._deadlines = Deadlines(len(server.names), deadline)
        self._evaluations = Deadlines(len(server.names), deadline)  # these last longer, or shorter
        self._screen = Screen(model.size, server.refuse)
        self._samples: dict[int, int] = {}
        self._weights: FloatArray | None = None

    def prepare(self, job: dict[str, Any], samples: Mapping[str, int] | None = None) -> None:
        """Send the job to every device, and wait until all have answered with their counts.

        Those who join later get it then. Once `least` are ready, whoever has been away for `grace`
        seconds is not waited for; a device that has joined is, while it prepares. Those who are
        missing then count as if they held as many samples as the mean device.

        Parameters
        ----------
        job : dict of JSON values
            What the devices are told of the run.
        samples : mapping of names to counts, optional
            The `samples` of the same run before its server was started again: the weights are
            those of these counts, and a device that names another is not let in.

        Raises
        ------
        TooFewClientsError
            If fewer than `least` are ready after `patience` seconds.
        """
        known = self._numbered(samples or {})
        screen = self._screen = Screen(self._model.size, self._server.refuse, known)
        self._server.give(
            job,
            floats=self._model.size,
            accept=lambda client, frame: screen.count(client, frame.header.get("samples")),
        )
        self._attendance.wait_for_all()
        self._samples = known or screen.samples
        self._weights = _shares(self._samples, len(self._server.names))

    @property
    def samples(self) -> dict[str, int]:
        """The counts that the weights follow from, by name; keep them for `prepare`."""
        return {self._server.names[i]: count for i, count in sorted(self._samples.items())}

    @property
    def refusals(self) -> Counter[tuple[int, str]]:
        """How often something of a client was refused, by client and reason."""
        return self._server.refusals

    @property
    def measured_times(self) -> FloatArray:
        """The running estimate of t_i, in seconds; NaN where a client never answered."""
        return self._deadlines.estimates

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

    def present(self) -> NDArray[np.bool_]:
        """Return which devices are there, prepared, and owe no answer; wait for `least`.

        Raises
        ------
        TooFewClientsError
            If there are fewer after `patience` seconds.
        """
        free = self._attendance.wait_for_least()
        mask = np.zeros(len(self._server.names), dtype=np.bool_)
        mask[free] = True
        return mask

    def run(
        self, parameters: FloatArray, draw: Draw, *, round_index: int, learning_rate: float
    ) -> Reply:
        """Send the model to the drawn, and return what comes back before the deadline."""
        self._learn_from_the_late()
        task = {"round": round_index, "learning_rate": learning_rate}
        answers = self._server.ask(
            "train",
            dict.fromkeys(draw.clients.tolist(), task),
            _sent(parameters),
            most_floats=self._model.size,
            seconds=self._deadlines.wait(draw.clients),
        )
        accepted = self._screen.updates(answers)
        for each in accepted:
            self._deadlines.observe(each.client, each.seconds)
        return _reply(answers, accepted, self._model.size)

    def evaluate(self, parameters: FloatArray) -> Evaluation:
        """Ask all who are present for their loss and for what they classify right.

        The mean is over those who answer. A model whose loss is not finite on most of them has
        diverged: the loss is NaN.
        """
        sent = _sent(parameters)
        for attempt in range(ATTEMPTS):
            clients = np.flatnonzero(self.present())
            self._learn_from_the_late()
            seconds = 2**attempt * self._evaluations.wait(clients)
            fields: dict[int, dict[str, Any]] = {client: {} for client in clients.tolist()}
            answers = self._server.ask("evaluate", fields, sent, seconds=seconds)
            for answer in answers:
                if not answer.problem:
                    self._evaluations.observe(answer.client, answer.seconds)
            evaluation = self._screen.evaluation(answers)
            if evaluation is not None:
                return evaluation
        raise TooFewClientsError(
            f"at least one device must evaluate the model, got none in {ATTEMPTS} attempts, the "
            f"last of {seconds:g} s; look at the devices, or give them longer with --deadline, and "
            "run the same command again to go on"
        )

    def _learn_from_the_late(self) -> None:
        for answer in self._server.late():
            evaluated = answer.frame.kind == "counts"
            deadlines = self._evaluations if evaluated else self._deadlines
            deadlines.observe(answer.client, answer.seconds)

    def _numbered(self, samples: Mapping[str, int]) -> dict[int, int]:
        numbers = {name: client for client, name in enumerate(self._server.names)}
        if unknown := [name for name in samples if name not in numbers]:
            raise InputError(
                f"devices must be those that the run began with, got none named '{unknown[0]}'; "
                "give the same names"
            )
        return {numbers[name]: count for name, count in samples.items()}


def _shares(samples: Mapping[int, int], n: int) -> FloatArray:
    """Return n_i / Σ n; those who are not known count as the mean of the others."""
    known = np.array(list(samples.values()), dtype=np.float64)
    counts = np.full(n, known.mean())
    counts[list(samples)] = known
    weights: FloatArray = counts / counts.sum()
    return weights


def _sent(parameters: FloatArray) -> Floats:
    with np.errstate(over="ignore"):  # a model that has diverged so far is said to have
        return parameters.astype(np.float32)


def _reply(answers: list[Answer], accepted: list[Accepted], length: int) -> Reply:
    """Return the columns of what was accepted, and who is missing."""
    here = {each.client for each in accepted}
    missing = [answer for answer in answers if answer.client not in here]
    refused = [each.client for each in missing if each.problem not in ("lost", "late")]
    return Reply(
        np.array([each.client for each in accepted], dtype=np.int64),
        np.array([each.update for each in accepted]).reshape(len(accepted), length),
        np.array([each.seconds for each in accepted], dtype=np.float64),
        np.array([each.grad_norm for each in accepted], dtype=np.float64),
        losses=np.array([each.loss for each in accepted], dtype=np.float64),
        computing_seconds=np.array([each.computing for each in accepted], dtype=np.float64),
        bytes_down=np.array([each.bytes_down for each in accepted], dtype=np.int64),
        bytes_up=np.array([each.bytes_up for each in accepted], dtype=np.int64),
        refused=np.array(refused, dtype=np.int64),
        waited=max(answer.seconds for answer in answers) if missing else None,
    )
