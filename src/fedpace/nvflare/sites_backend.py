"""Our backend over NVFlare's tasks: its sites are the clients."""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.controller_spec import Task as SiteTask
from nvflare.apis.fl_constant import ReturnCode
from nvflare.app_common.abstract.fl_model import FLModel, MetaKey, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedpace.checks import FloatArray
from fedpace.errors import InputError
from fedpace.remote.layout import ArrayLayout
from fedpace.remote.replies import Accepted, as_reply
from fedpace.remote.roster import Roster
from fedpace.remote.screening import BadReplyError, Border, Said
from fedpace.remote.waiting import waited_for
from fedpace.rounds.backend import Evaluation, Reply, Task
from fedpace.times.round_times import Presence

if TYPE_CHECKING:
    from fedpace.nvflare.controller import AdaptiveSampling

# Seconds between looks for sites, and for replies.
LOOK, POLL = 1.0, 0.05
# What a site may say of its training, beside what NVFlare's own FedAvg knows.
GRAD_NORM, LOSS = "grad-norm", "loss"


class _Sent(NamedTuple):
    """A task on its way to a site: the model that was sent, and when."""

    vector: FloatArray
    when: float


class _Answer(NamedTuple):
    """What came back; `result` is None where a site failed or was too late."""

    client: int
    sent: _Sent
    result: Any
    seconds: float


class SitesBackend:
    """Train on the sites of an NVFlare job; `controller` sends the tasks.

    NVFlare's threads hand in results while the loop waits, so that what is on its way is behind a
    lock.
    """

    usual_times = None  # measured

    def __init__(self, controller: AdaptiveSampling, model: FLModel) -> None:
        self.controller = controller
        self.roster = Roster(given=controller.samples)
        self.border = Border()
        arrays = {name: np.asarray(each) for name, each in model.params.items()}
        self.layout = ArrayLayout.of_arrays(arrays)
        self._start = self.layout.vector_of(arrays, _opened)
        self.latest_failure = ""
        self._lock = threading.Lock()
        self._open: dict[int, _Sent] = {}
        self._here: list[_Answer] = []
        self._since = time.monotonic()
        self.present(0, 0.0)

    @property
    def weights(self) -> FloatArray:
        """p_i, as far as counts are known."""
        return self.roster.weights

    def initial(self) -> FloatArray:
        """Return the model of the job's persistor."""
        return self._start

    def present(self, round_index: int, seconds: float) -> Presence:  # noqa: ARG002
        """Return which sites are connected and idle, and how long was waited."""
        began, needed = time.monotonic(), self.controller.min_clients

        def look() -> NDArray[np.bool_] | None:
            names = sorted(each.name for each in self.controller.engine.get_clients())
            if len(names) < needed:
                return None
            there = {self.roster.number(name) for name in names} - {*self._open}
            return np.isin(np.arange(len(self.roster)), [*there]) if there else None

        clients = waited_for(
            look,
            patience=self.controller.wait,
            pause=LOOK,
            missing=lambda: f"at least {needed} idle sites must be there",
            remedy="start more, or lower min_clients",
            say=lambda line: self.controller.info(f"fedpace: {line}"),
        )
        return Presence(clients, time.monotonic() - began if round_index else 0.0)

    def submit(self, task: Task) -> None:
        """Send the model to the sites of a task, each as a task of its own."""
        arrays = self.layout.arrays_of(task.parameters)
        sent = _Sent(self.layout.vector_of(arrays, _opened), time.monotonic())
        if not self._open and not self._here:
            self._since = sent.when
        for client in task.clients.tolist():
            with self._lock:
                self._open[client] = sent
            controller = self.controller
            model = FLModel(
                params=arrays,
                params_type=ParamsType.FULL,
                current_round=task.round_index,
                total_rounds=controller.num_rounds,
            )
            controller.broadcast(
                task=SiteTask(
                    name=controller.task_name,
                    data=FLModelUtils.to_shareable(model),
                    timeout=controller.deadline,
                    result_received_cb=self._received,
                    task_done_cb=partial(self._ended, client, sent),
                ),
                fl_ctx=controller.fl_ctx,
                targets=[self.roster.names[client]],
                min_responses=1,
            )

    def collect(self, count: int | None = None) -> Reply:
        """Wait for the next replies; who failed or was too late is missing."""
        while True:
            with self._lock:
                if not self._open or (count is not None and len(self._here) >= count):
                    answers, self._here = self._here, []
                    break
            if self.controller.abort_signal.triggered:
                raise InputError("the job was aborted; start it again")
            time.sleep(POLL)
        now = time.monotonic()
        waited, self._since = (now - self._since if answers else 0.0), now
        return self._read(answers, waited)

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:  # noqa: ARG002
        """Return None: the loss is estimated from what sites say of the model that they got."""
        return None

    def _received(self, client_task: Any, fl_ctx: Any) -> None:  # noqa: ARG002 - NVFlare's signature
        self._arrived(self.roster.number(client_task.client.name), client_task.result)
        client_task.result = None  # it is here now

    def _ended(self, client: int, sent: _Sent, task: Any, fl_ctx: Any) -> None:  # noqa: ARG002
        """Note that a task is over: whoever has not answered by now does not count."""
        if self._open.get(client) is sent:
            self._arrived(client, None)

    def _arrived(self, client: int, result: Any) -> None:
        with self._lock:
            if (sent := self._open.pop(client, None)) is not None:
                seconds = time.monotonic() - sent.when
                self._here.append(_Answer(client, sent, result, seconds))

    def _read(self, answers: list[_Answer], waited: float) -> Reply:
        """Screen what came back; all are opened before any is judged."""
        accepted: list[Accepted] = []
        refused, opened = [], []
        for answer in answers:
            try:
                opened.append((answer, *self._opened(answer)))
            except Exception as error:  # whatever a site sends shall not end a run
                self._leave_out(answer, error)
                if answer.result is not None and _code(answer.result) == ReturnCode.OK:
                    refused.append(answer.client)
        self.border.meet(said for _, said, _ in opened)
        for answer, said, model in opened:
            try:
                accepted.append(self._accepted(answer, said, model))
            except Exception as error:
                self._leave_out(answer, error)
                refused.append(answer.client)
        fine = {each.client for each in accepted}
        missing = [each.client for each in answers if each.client not in fine]
        return as_reply(
            accepted, length=self._start.size, refused=refused, waited=waited, missing=missing
        )

    def _opened(self, answer: _Answer) -> tuple[Said, FLModel]:
        if answer.result is None:
            raise BadReplyError("no answer in time")
        if (code := _code(answer.result)) != ReturnCode.OK:
            raise BadReplyError(f"its executor failed: {code}; see the site's log")
        model = FLModelUtils.from_shareable(answer.result)
        vector = self.layout.vector_of(model.params or {}, _opened)
        update = vector if model.params_type == ParamsType.DIFF else vector - answer.sent.vector
        told, metrics = model.meta, model.metrics or {}
        said = Said(answer.client, update, told.get(GRAD_NORM), metrics.get(LOSS), answer.seconds)
        return said, model

    def _accepted(self, answer: _Answer, said: Said, model: FLModel) -> Accepted:
        client, border, update = answer.client, self.border, said.update
        assert update is not None
        steps = model.meta.get(MetaKey.NUM_STEPS_CURRENT_ROUND)
        count = None if steps is None else border.count(steps)
        loss = math.nan if said.loss is None else border.loss(client, said.loss)
        floats = self.layout.floats
        border.update(client, update[floats], length=int(floats.sum()))
        if not np.isfinite(update).all():
            raise BadReplyError("the update is not finite")
        length = float(np.linalg.norm(update[self.layout.trained]))
        norm = (
            border.grad_norm(client, length)  # stands in for it
            if said.grad_norm is None
            else border.grad_norm(client, said.grad_norm, length)
        )
        if count is not None:
            self.roster.learn(client, count)
        seconds = border.took(client, answer.seconds)
        return Accepted(client, update, seconds, norm, loss, math.nan, 0, 0)

    def _leave_out(self, answer: _Answer, error: Exception) -> None:
        self.border.forget(answer.client)
        self.latest_failure = f"{self.roster.names[answer.client]}: {error!s:.200}"
        self.controller.warning(f"fedpace: left out {self.latest_failure!r}")


def _opened(name: str, array: Any, size: int) -> NDArray[Any]:  # noqa: ARG001
    return np.asarray(array)


def _code(result: Any) -> str:
    return str(result.get_return_code() or ReturnCode.OK)
