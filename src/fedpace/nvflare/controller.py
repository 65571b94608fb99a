"""Adaptive sampling as an NVFlare controller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController

from fedpace.checks import positive_count
from fedpace.errors import InputError, TooFewClientsError
from fedpace.estimation.policy import sampler_for
from fedpace.nvflare.sites_backend import SitesBackend
from fedpace.rounds.buffers import Buffered
from fedpace.rounds.rows import Row
from fedpace.rounds.run import train
from fedpace.rounds.server import AUTO, server_named
from fedpace.rounds.stopping import Stop
from fedpace.seeds import Seeds


class AdaptiveSampling(ModelController):  # type: ignore[misc]  # NVFlare has no types
    """Draw sites so that training takes less wall-clock time; stay unbiased.

    In the place of NVFlare's FedAvg::

        job.to_server(AdaptiveSampling(k=2, num_rounds=50))

    Parameters
    ----------
    k : int ≥ 1
        K, the sites in a round; schemes draw with replacement, so that at most K get a task.
    num_rounds : int ≥ 1
        Rounds of training.
    scheme, server : str
        What to draw by, and what becomes of the replies: names as in `fedpace run`.
    seed : int ≥ 0
        For the draws.
    deadline : int ≥ 0, seconds
        A reply later than this is missing; 0 waits for all.
    min_clients : int ≥ 1
        Sites that must be connected before a round begins.
    wait : float, seconds
        How long to wait for them.
    samples : mapping of sites to counts, optional
        How many samples sites have. Without it, what `NUM_STEPS_CURRENT_ROUND` says counts, as in
        NVFlare's FedAvg; a site that says nothing counts as an average one.
    history : str
        A CSV file for what happened, one row per round; empty for none.
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
        # What fails shall be missing, not the end of the job.
        super().__init__(persistor_id=persistor_id, ignore_result_error=True)
        # NVFlare writes a job's file from attributes that are called as the arguments are.
        self.k = positive_count("k", k)
        self.num_rounds = positive_count("num_rounds", num_rounds, "give the rounds to train")
        self.min_clients = positive_count("min_clients", min_clients, "give 1")
        self.scheme, self.server, self.seed, self.wait = scheme, server, seed, wait
        self.deadline, self.samples, self.history = deadline, samples, history
        self.task_name, self.persistor_id = task_name, persistor_id
        server_named(server, sampler_for(scheme, k))

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
            server=Buffered(server_named(self.server, sampler), backend.layout.trained),
            watch=self._told,
        )
        if not outcome.state.answered.sum():
            raise TooFewClientsError(
                f"a site must answer, got no reply of use in {self.num_rounds} rounds, the latest: "
                f"{backend.latest_failure or 'nobody answered in time'}; mend the executor, or "
                "give a longer deadline"
            )
        params = backend.layout.arrays_of(outcome.parameters)
        self.save_model(FLModel(params=params, meta=model.meta))
        if self.history:
            outcome.history.write_csv(Path(self.history))

    def _told(self, row: Row) -> None:
        asked = row.clients.size + row.missing.size
        self.info(
            f"fedpace: round {row.round}/{self.num_rounds}: {row.clients.size} of {asked} sites "
            f"answered in {row.round_seconds:.1f} s"
        )
