"""What can be set about adaptive sampling in Flower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedpace.checks import positive_count
from fedpace.errors import InputError, nearest
from fedpace.estimation.adaptive import Pilots, WarmUp
from fedpace.flower.exchange import WALL, Clock
from fedpace.rounds.schedules import Schedule
from fedpace.sampling.schemes import SCHEMES, WITHOUT_PILOTS
from fedpace.sampling.solution import check_cap


@dataclass(frozen=True)
class Keys:
    """What things are called in messages; the defaults are Flower's."""

    samples: str = "num-examples"
    arrays: str = "arrays"
    config: str = "config"
    learning_rate: str = "lr"


@dataclass(eq=False)
class Settings:
    """Hold the settings of a strategy, checked once.

    Parameters
    ----------
    k : int ≥ 1
        K, the draws per round, with replacement: at most so many clients get a message.
    scheme : str
        full, uniform, weighted, statistical, optimal-mean or optimal-max.
    max_weight : float > 0, optional
        Caps p_i / (K q_i), at least 1/k. At 1 one draw moves the model no farther than the client's
        own update, unless the client seldom answers and its update is made to count for more.
    pilots : WarmUp or Pilots
        How to learn before the first optimal draw: some rounds of weighted sampling that count as
        training, or the two pilots of the paper's Algorithm 2.
    refresh : int ≥ 1
        After so many rounds the probabilities are solved for again, and new nodes join the draw.
    c_over_s0 : float ≥ 0, optional
        c = β/α in units of S_0; without it 1, or what two pilots tell.
    seed : int ≥ 0
        For the draws.
    deadline : float > 0, seconds, optional
        Replies later than this are missing; by default the `timeout` of `start`.
    min_available_nodes : int ≥ 1
        So many must be connected; until then a round waits.
    expected_nodes : int, optional
        Before the first round so many are waited for. With the same nodes, draws are the same.
    wait : float, seconds
        But no longer than this: then TooFewClientsError.
    query : bool
        Ask new nodes for their partition and sample count: see `described`.
    fraction_evaluate : float in [0, 1]
        The share of connected clients that evaluate the model.
    evaluate_every : int ≥ 0
        In every so many rounds and in the last; 0 for never. Every evaluation waits for the
        slowest of them.
    schedule : function of the round, optional
        Sets the learning rate in the messages' config, under `keys.learning_rate`. Only `start`
        does so, not Flower's own loop.
    local_steps : int ≥ 1, optional
        E, for clients that report neither gradient norm nor steps.
    target_loss, target_accuracy : float, optional
        End when the evaluation reaches it.
    checkpoint : path, optional
        A file that is written after every round. If it is there, `start` goes on from it.
    out : path, optional
        A directory to which the finished run is added, for `fedpace report`.
    keys : Keys
        What things are called in messages.
    clock : Clock
        The time.
    """

    k: int
    scheme: str = "optimal-mean"
    max_weight: float | None = field(default=1.0, kw_only=True)
    pilots: WarmUp | Pilots = field(default=WarmUp(10), kw_only=True)
    refresh: int = field(default=10, kw_only=True)
    c_over_s0: float | None = field(default=None, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    deadline: float | None = field(default=None, kw_only=True)
    min_available_nodes: int = field(default=2, kw_only=True)
    expected_nodes: int | None = field(default=None, kw_only=True)
    wait: float = field(default=600.0, kw_only=True)
    query: bool = field(default=True, kw_only=True)
    fraction_evaluate: float = field(default=1.0, kw_only=True)
    evaluate_every: int = field(default=10, kw_only=True)
    schedule: Schedule | None = field(default=None, kw_only=True)
    local_steps: int | None = field(default=None, kw_only=True)
    target_loss: float | None = field(default=None, kw_only=True)
    target_accuracy: float | None = field(default=None, kw_only=True)
    checkpoint: str | Path | None = field(default=None, kw_only=True)
    out: str | Path | None = field(default=None, kw_only=True)
    keys: Keys = field(default=Keys(), kw_only=True)
    clock: Clock = field(default=WALL, kw_only=True)

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        positive_count("refresh", self.refresh, "give the rounds between two solutions")
        positive_count("min_available_nodes", self.min_available_nodes, "give 2")
        positive_count(
            "pilots.rounds", self.pilots.rounds, "give WarmUp(10), or a scheme that learns nothing"
        )
        if self.max_weight is not None:
            check_cap("max_weight", self.max_weight, self.k)
        if self.scheme not in SCHEMES:
            hint = nearest(self.scheme, SCHEMES)
            raise InputError(f"scheme must be a known name, got '{self.scheme}'; {hint}")
        if not 0 <= self.fraction_evaluate <= 1:
            raise InputError(
                f"fraction_evaluate must lie in [0, 1], got {self.fraction_evaluate}; "
                "give 1 for all"
            )
        if self.deadline is not None and not self.deadline > 0:
            raise InputError(f"deadline must be positive, got {self.deadline}; leave it out")

    @property
    def ending_loss(self) -> float | None:
        """The highest loss that ends training or a pilot."""
        pilots = [min(self.pilots.thresholds)] if isinstance(self.pilots, Pilots) else []
        target = [] if self.target_loss is None else [self.target_loss]
        return max([*pilots, *target], default=None)

    def about(self) -> dict[str, Any]:
        """Return what a checkpoint must agree with."""
        return {
            "flower": self.scheme,
            "k": self.k,
            "seed": self.seed,
            "max_weight": self.max_weight,
            "c_over_s0": self.c_over_s0,
            "pilots": asdict(self.pilots),
        }

    def doubts(self, rounds: int, *, evaluated: bool) -> Iterator[str]:
        """Yield what speaks against these settings; `evaluated` says whether the server does."""
        if self.scheme not in WITHOUT_PILOTS and rounds <= self.pilots.rounds:
            yield (
                f"no round is drawn by {self.scheme}: all {rounds} are for learning; "
                f"give more than {self.pilots.rounds} rounds, or fewer to pilots"
            )
        if not (evaluated or self.evaluate_every * self.fraction_evaluate) and not (
            self.target_loss is None and self.target_accuracy is None
        ):
            yield (
                "nobody evaluates, so no target will be reached; "
                "give evaluate_fn, or evaluate_every and fraction_evaluate above 0"
            )
