"""Adaptive sampling as an NVFlare controller; the sites of a job are the clients."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.backends.remote.replies import Accepted, ArrayLayout, Update, as_reply
from fedpace.backends.remote.roster import Roster, wait_until
from fedpace.backends.remote.screening import BadReplyError, Border, Claims
from fedpace.checks import FloatArray, positive_count
from fedpace.errors import InputError, TooFewClientsError, needs
from fedpace.samplers.build import sampler_for
from fedpace.seeds import Seeds
from fedpace.servers.build import AUTO, AverageBuffers, server_for
from fedpace.times.round_times import Presence
from fedpace.training.backend import BaseBackend, Evaluation, Reply, Task
from fedpace.training.history import Row
from fedpace.training.stopping import Stop
from fedpace.training.train import train

with needs("fedpace.nvflare needs NVFlare", "nvflare"):
    from nvflare.apis.controller_spec import Task as SiteTask
    from nvflare.apis.fl_constant import ReturnCode
    from nvflare.app_common.abstract.fl_model import FLModel, MetaKey, ParamsType
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils
    from nvflare.app_common.workflows.model_controller import ModelController

# Seconds between looks for sites, and for replies.
LOOK, POLL = 1.0, 0.05
# Optional metadata of a site's reply, besides what NVFlare's own FedAvg knows.
GRAD_NORM, LOSS = "grad-norm", "loss"


class AdaptiveSampling(ModelController):  # type: ignore[misc]  # NVFlare has no types
    """Draw sites so that training takes less wall-clock time; stay unbiased.

    Replaces NVFlare's FedAvg::

        job.to_server(AdaptiveSampling(k=2, num_rounds=50))

    Parameters
    ----------
    k : int ≥ 1
        K, the sites in a round; schemes draw with replacement, so that at most K get a task.
    num_rounds : int ≥ 1
        Rounds of training.
    scheme, server : str
        The sampling scheme and the server rule: names as in `fedpace run`.
    seed : int ≥ 0
        For the draws.
    deadline : int ≥ 0, seconds
        Replies later than this are missing; 0 waits for all.
    min_clients : int ≥ 1
        Sites that must be connected before a round begins.
    wait : float, seconds
        Seconds to wait for them before TooFewClientsError.
    samples : mapping of sites to counts, optional
        Sample counts. By default `NUM_STEPS_CURRENT_ROUND` counts, as in NVFlare's FedAvg; a site
        that does not report it counts as an average one.
    history : str
        A CSV file with one row per round; empty for none.
    task_name, persistor_id : str
        As for NVFlare's FedAvg.
    """

    def __init__(
        self,
        k: int,
        num_rounds: int = 5,
        *,
        scheme: str = "pace",
        server: str = AUTO,
        seed: int = 0,
        deadline: int = 0,
        min_clients: int = 1,
        wait: float = 600.0,
        samples: Mapping[str, int] | None = None,
        history: str = "",
        task_name: str = "train",
        persistor_id: str = "persistor",
    ) -> None:
        # A failing site is missing, and does not end the job.
        super().__init__(persistor_id=persistor_id, ignore_result_error=True)
        # NVFlare writes a job's file from attributes with the names of the arguments.
        self.k = positive_count("k", k)
        self.num_rounds = positive_count("num_rounds", num_rounds, "give the rounds to train")
        self.min_clients = positive_count("min_clients", min_clients, "give 1")
        self.scheme, self.server, self.seed, self.wait = scheme, server, seed, wait
        self.deadline, self.samples, self.history = deadline, samples, history
        self.task_name, self.persistor_id = task_name, persistor_id
        server_for(server, sampler_for(scheme, k))

    def run(self) -> None:
        """Train; NVFlare calls this."""
        model = self.load_model()
        if model is None or not model.params:
            raise InputError("persistor must have a model, got none; give the job one, with arrays")
        backend = SitesBackend(self, model)
        sampler = sampler_for(self.scheme, self.k)
        outcome = train(
            backend,
            sampler,
            schedule=lambda _: math.nan,  # clients know their learning rate
            stop=Stop(rounds=self.num_rounds, blind=True),
            seeds=Seeds(self.seed),
            server=AverageBuffers(server_for(self.server, sampler), backend.layout.trained),
            callbacks=[self._log_row],
        )
        if not outcome.state.answered.sum():
            raise TooFewClientsError(
                f"a site must answer, got no valid reply in {self.num_rounds} rounds, the latest: "
                f"{backend.latest_failure or 'no site answered in time'}; correct the executor, or "
                "give a longer deadline"
            )
        params = backend.layout.arrays_of(outcome.parameters)
        self.save_model(FLModel(params=params, meta=model.meta))
        if self.history:
            outcome.history.write_csv(Path(self.history))

    def _log_row(self, row: Row) -> None:
        asked = row.clients.size + row.missing.size
        self.info(
            f"fedpace: round {row.round}/{self.num_rounds}: {row.clients.size} of {asked} sites "
            f"answered in {row.round_seconds:.1f} s"
        )


class _Sent(NamedTuple):
    """A site's task: the model that was sent, and when."""

    parts: list[NDArray[Any]]
    when: float


class _Answer(NamedTuple):
    """A site's reply; `result` is None if the site failed or was too late."""

    client: int
    sent: _Sent
    result: Any
    seconds: float


class SitesBackend(BaseBackend):
    """Train on the sites of an NVFlare job; `controller` sends the tasks.

    NVFlare's threads deliver results while the loop waits, so that open tasks are behind a lock.
    """

    def __init__(self, controller: AdaptiveSampling, model: FLModel) -> None:
        self.controller = controller
        self.roster = Roster(given=controller.samples, most=None)
        self.border = Border()
        arrays = {name: np.asarray(each) for name, each in model.params.items()}
        self.layout = ArrayLayout.of_arrays(arrays)
        self._start = self.layout.vector_of(arrays, _open_array)
        self.latest_failure = ""
        self._lock = threading.Lock()
        self._open: dict[int, _Sent] = {}
        self._arrived: list[_Answer] = []
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
        """Return which sites are connected and idle, and how long it took to find enough."""
        began, needed = time.monotonic(), self.controller.min_clients

        def look() -> NDArray[np.bool_] | None:
            names = sorted(each.name for each in self.controller.engine.get_clients())
            if len(names) < needed:
                return None
            idle = {self.roster.number(name) for name in names} - {*self._open}
            return np.isin(np.arange(len(self.roster)), [*idle]) if idle else None

        clients = wait_until(
            look,
            patience=self.controller.wait,
            pause=LOOK,
            missing=lambda: f"at least {needed} idle sites must be there",
            remedy="start more, or lower min_clients",
            say=lambda line: self.controller.info(f"fedpace: {line}"),
        )
        return Presence(clients, time.monotonic() - began if round_index else 0.0)

    def submit(self, task: Task) -> None:
        """Send the model to the sites of a task, each as an NVFlare task of its own."""
        controller, arrays = self.controller, self.layout.arrays_of(task.parameters)
        sent = _Sent(self.layout.parts_of(arrays, _open_array), time.monotonic())
        if not self._open and not self._arrived:
            self._since = sent.when
        model = FLModel(
            params=arrays,
            params_type=ParamsType.FULL,
            current_round=task.round_index,
            total_rounds=controller.num_rounds,
        )
        for client in task.clients.tolist():
            with self._lock:
                self._open[client] = sent
            site_task = SiteTask(
                name=controller.task_name,
                data=FLModelUtils.to_shareable(model),
                timeout=controller.deadline,
                result_received_cb=self._receive,
                task_done_cb=partial(self._end, client, sent),
            )
            targets = [self.roster.names[client]]
            controller.broadcast(
                task=site_task, fl_ctx=controller.fl_ctx, targets=targets, min_responses=1
            )

    def collect(self, count: int | None = None) -> Reply:
        """Wait for the next replies; sites that failed or were too late are missing."""
        while True:
            with self._lock:
                if not self._open or (count is not None and len(self._arrived) >= count):
                    answers, self._arrived = self._arrived, []
                    break
            if self.controller.abort_signal.triggered:
                raise InputError("the job was aborted; start it again")
            time.sleep(POLL)
        now = time.monotonic()
        waited, self._since = (now - self._since if answers else 0.0), now
        return self._read(answers, waited)

    def evaluate(self, parameters: FloatArray, *, due: bool = True) -> Evaluation | None:  # noqa: ARG002
        """Return None: the loss is estimated from what sites report of the model they received."""
        return None

    def _receive(self, client_task: Any, fl_ctx: Any) -> None:  # noqa: ARG002 - NVFlare's signature
        self._arrive(self.roster.number(client_task.client.name), client_task.result)
        client_task.result = None  # taken over

    def _end(self, client: int, sent: _Sent, task: Any, fl_ctx: Any) -> None:  # noqa: ARG002
        """Note that a task is over: a site that has not answered by now is missing."""
        if self._open.get(client) is sent:
            self._arrive(client, None)

    def _arrive(self, client: int, result: Any) -> None:
        with self._lock:
            if (sent := self._open.pop(client, None)) is not None:
                self._arrived.append(_Answer(client, sent, result, time.monotonic() - sent.when))

    def _read(self, answers: list[_Answer], waited: float) -> Reply:
        """Screen the answers; all are opened before any is judged."""
        accepted: list[Accepted] = []
        refused, opened = [], []
        answers.sort(key=lambda each: each.client)
        for answer in answers:
            try:
                opened.append((answer, *self._open_answer(answer)))
            except Exception as error:  # no site can end a run
                self._leave_out(answer, error)
                if answer.result is not None and _code(answer.result) == ReturnCode.OK:
                    refused.append(answer.client)
        self.border.meet(said for _, said, _, _ in opened)
        for answer, said, update, model in opened:
            try:
                accepted.append(self._accept(answer, said, update, model))
            except Exception as error:
                self._leave_out(answer, error)
                refused.append(answer.client)
        fine = {each.client for each in accepted}
        missing = [each.client for each in answers if each.client not in fine]
        length = self._start.size
        return as_reply(accepted, length=length, refused=refused, waited=waited, missing=missing)

    def _open_answer(self, answer: _Answer) -> tuple[Claims, Update, FLModel]:
        if answer.result is None:
            raise BadReplyError("no answer in time")
        if (code := _code(answer.result)) != ReturnCode.OK:
            raise BadReplyError(f"its executor failed: {code}; see the site's log")
        model = FLModelUtils.from_shareable(answer.result)
        parts = self.layout.parts_of(model.params or {}, _open_array)
        whole = model.params_type != ParamsType.DIFF
        update = self.layout.difference(parts, answer.sent.parts if whole else None)
        norm, loss = model.meta.get(GRAD_NORM), (model.metrics or {}).get(LOSS)
        return Claims(answer.client, update.length, norm, loss, answer.seconds), update, model

    def _accept(self, answer: _Answer, said: Claims, update: Update, model: FLModel) -> Accepted:
        client, border = answer.client, self.border
        steps = model.meta.get(MetaKey.NUM_STEPS_CURRENT_ROUND)
        count = None if steps is None else border.count(steps)
        loss = math.nan if said.loss is None else border.loss(client, said.loss)
        values = update.values.times(border.update(client, update.length))
        norm = (
            border.grad_norm(client, update.trained)  # stands in for it
            if said.grad_norm is None
            else border.grad_norm(client, said.grad_norm, update.trained)
        )
        if count is not None:
            self.roster.learn(client, count)
        seconds = border.took(client, answer.seconds)
        return Accepted(client, values, seconds, norm, loss, math.nan, 0, 0)

    def _leave_out(self, answer: _Answer, error: Exception) -> None:
        self.border.forget(answer.client)
        self.latest_failure = f"{self.roster.names[answer.client]}: {error!s:.200}"
        self.controller.warning(f"fedpace: left out {self.latest_failure!r}")


def _open_array(name: str, array: Any, size: int) -> NDArray[Any]:  # noqa: ARG001
    return np.asarray(array)


def _code(result: Any) -> str:
    return str(result.get_return_code() or ReturnCode.OK)
