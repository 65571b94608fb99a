"""What can be set about adaptive sampling in Flower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from flwr.serverapp.strategy import FedAvg

from fedpace.checks import positive_count
from fedpace.errors import InputError, nearest
from fedpace.estimation.pace import Pace
from fedpace.estimation.pilots import Piloted
from fedpace.estimation.policy import (
    OURS,
    USUAL,
    USUAL_WARM_UP,
    Pilots,
    WarmUp,
    sampler_for,
    stream_sampler_for,
)
from fedpace.estimation.solve import WARM_UP, Solve
from fedpace.flower.composing import check_composable
from fedpace.flower.nodes import PARTITION
from fedpace.lookup import fingerprint, label
from fedpace.remote.waiting import WALL, Clock
from fedpace.rounds.limits import LARGEST_SHARE, checked_share
from fedpace.rounds.privacy import Privacy
from fedpace.rounds.run import ASYNCHRONOUS, MODES
from fedpace.rounds.sampler import Sampler, phase_of
from fedpace.rounds.schedules import Schedule
from fedpace.rounds.server import Server, server_named
from fedpace.sampling.schemes import SCHEMES, Scheme
from fedpace.sampling.solution import check_cap

# What stands for the arguments of Flower's FedAvg here.
HINTS = {
    "fraction_train": "give k, the clients of a round",
    "min_train_nodes": "give k, the clients of a round",
    "min_evaluate_nodes": "give fraction_evaluate",
    "weighted_by_key": "give keys=Keys(samples=…), from fedpace.flower.settings",
    "arrayrecord_key": "give keys=Keys(arrays=…), from fedpace.flower.settings",
    "configrecord_key": "give keys=Keys(config=…), from fedpace.flower.settings",
    "train_metrics_aggr_fn": "give AdaptiveSampling(FedAvg(train_metrics_aggr_fn=…), k=10)",
    "evaluate_metrics_aggr_fn": "give AdaptiveSampling(FedAvg(evaluate_metrics_aggr_fn=…), k=10)",
}


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
    strategy : FedAvg, FedAdam, FedYogi, FedProx, FedAvgM, or a subclass of these, optional
        Configures the messages and aggregates, while fedpace draws and weights: see `Aggregating`.
    k : int ≥ 1
        K, the clients in a round; schemes draw with replacement, so that at most K get a message.
    scheme : str, Scheme, Sampler, or a class of samplers
        pace, which needs no setting; full, uniform, weighted, statistical, optimal-mean,
        optimal-max, …; `file.py:name` or `module:name` for your own, or your own itself. A class
        is called with `k=k`.
    server : str or Server
        What becomes of the replies: average, memory, adam:RATE, yogi:RATE; clip:FACTOR,
        trimmed:SHARE, krum:COUNT against clients that send something wrong; `file.py:name`, or your
        own itself. auto is memory for `pace`, the average for all others.
    max_weight : float > 0, None, or "usual"
        Caps the weight of one draw, p_i / (K q_i) in a scheme, at least 1/k; None for no cap. Usual
        is 1 for a scheme, and None for pace, which caps the weight of a round by itself. At 1 one
        draw moves the model no farther than the client's own update, unless the client seldom
        answers and its update is made to count for more.
    pilots : WarmUp or Pilots, optional
        How to learn before the first optimal draw: some rounds of weighted sampling that count as
        training, or, for a scheme, the two pilots of the paper's Algorithm 2. By default a warm-up
        of three rounds for pace, and of ten for a scheme that learns.
    mode : "synchronous" or "asynchronous"
        With rounds, which wait for the slowest client drawn; or without: `k` clients are always at
        work, each is sent the newest model as soon as it is free, and every `buffer` updates make
        a step. Rounds are then steps, and `start` has the loop.
    buffer : int ≥ 1, optional
        Updates in a step, in the mode "asynchronous"; by default as the scheme says, else `k`.
    refresh : int ≥ 1
        Rounds after which the probabilities are solved for again, and new nodes join the draw.
    c_over_s0 : float ≥ 0, optional
        c = β/α in units of S_0; without it 1, or what two pilots tell, or what pace measures.
    seed : int ≥ 0
        For the draws.
    deadline : float > 0, seconds, optional
        Replies later than this are missing; by default the `timeout` of `start`.
    min_available_nodes : int ≥ 1
        Nodes that must be connected; until then a round waits.
    expected_nodes : int, optional
        Nodes that the first round waits for. With the same nodes, draws are the same.
    wait : float, seconds
        Seconds to wait for clients before TooFewClientsError.
    query : bool
        Ask new nodes for their partition and sample count: for ClientApps that answer by
        `described`. Others would log an error, so that it is off.
    count_start : bool
        Count in the run's seconds, and in the first times of clients, what passes until the first
        of them has started.
    largest_share : float in (0, 1]
        Of the rounds that one client may be in, however fast or instructive it seems; twice its
        fair share is always allowed, and 1 is no limit.
    samples : mapping of partitions to counts, optional
        How many samples clients have, where you know it: what they say does not count. A count
        that only the client says weighs for twelve times the mean of smaller ones at most.
    privacy : Privacy, optional
        What clients do to their updates by the mod `private`, for the account of it: ε is logged at
        the end, and in the report. The server only says it; clients do it.
    fraction_evaluate : float in [0, 1]
        The share of connected clients that evaluate the model.
    evaluate_every : int ≥ 0
        They evaluate in every n-th round and in the last; 0 for never. Every evaluation waits for
        the slowest of them.
    schedule : function of the round, optional
        Sets the learning rate in the messages' config, under `keys.learning_rate`.
    local_steps : int ≥ 1, optional
        E, for clients that report neither gradient norm nor steps.
    target_loss, target_accuracy : float, optional
        End when the evaluation reaches it.
    checkpoint : path, optional
        A file that is written after every round. If it exists, `start` goes on from it.
    out : path, optional
        A directory to which the finished run is added, for `fedpace report`.
    keys : Keys
        What things are called in messages.
    clock : Clock
        The time.
    """

    strategy: FedAvg | None = None
    _: KW_ONLY
    k: int
    scheme: str | Scheme | Sampler | type[Any] = "pace"
    server: str | Server = "auto"
    max_weight: float | Literal["usual"] | None = "usual"
    pilots: WarmUp | Pilots | None = None
    mode: Literal["synchronous", "asynchronous"] = "synchronous"
    buffer: int | None = None
    refresh: int = 10
    c_over_s0: float | None = None
    seed: int = 0
    deadline: float | None = None
    min_available_nodes: int = 2
    expected_nodes: int | None = None
    wait: float = 600.0
    query: bool = False
    count_start: bool = False
    largest_share: float = LARGEST_SHARE
    samples: Mapping[int, int] | None = None
    privacy: Privacy | None = None
    fraction_evaluate: float = 1.0
    evaluate_every: int = 10
    schedule: Schedule | None = None
    local_steps: int | None = None
    target_loss: float | None = None
    target_accuracy: float | None = None
    checkpoint: str | Path | None = None
    out: str | Path | None = None
    keys: Keys = Keys()
    clock: Clock = WALL

    def __new__(cls, *_: object, **named: object) -> Self:
        """Say what stands here for the arguments of Flower's FedAvg."""
        for name, remedy in HINTS.items():
            if name in named:
                raise InputError(f"{cls.__name__} takes no {name}; {remedy}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        if self.strategy is not None:
            check_composable(self.strategy)
            if self.asynchronous:
                remedy = "give server='adam:0.1', or leave mode out"
                raise InputError(f"strategy must be left out without rounds; {remedy}")
            self._take_over(self.strategy)
        positive_count("min_available_nodes", self.min_available_nodes, "give 2")
        remedy = "give WarmUp(10), or a scheme that learns nothing"
        positive_count("pilots.rounds", self.learning.rounds, remedy)
        self._check_mode()
        if self.cap is not None:
            check_cap("max_weight", self.cap, self.buffer or self.k)
        if not 0 <= (share := self.fraction_evaluate) <= 1:
            raise InputError(f"fraction_evaluate must lie in [0, 1], got {share}; give 1 for all")
        if self.deadline is not None and not self.deadline > 0:
            raise InputError(f"deadline must be positive, got {self.deadline}; leave it out")
        checked_share("largest_share", self.largest_share)
        for partition, count in (self.samples or {}).items():
            positive_count(f"samples of partition {partition}", count)
        self.sampler()
        self.made_server()

    def _check_mode(self) -> None:
        if self.mode not in MODES:
            got = f"{self.mode!r}; {nearest(str(self.mode), MODES)}"
            raise InputError(f"mode must be synchronous or asynchronous, got {got}")
        if self.buffer is not None:
            positive_count("buffer", self.buffer, "give the updates in a step")
            if not self.asynchronous:
                remedy = "give mode='asynchronous', or leave it out"
                raise InputError(f"buffer has no meaning in rounds, got {self.buffer}; {remedy}")
        if self.asynchronous and isinstance(self.pilots, Pilots):
            remedy = "give pilots=WarmUp(10), or mode='synchronous'"
            raise InputError(f"pilots need rounds, got mode asynchronous; {remedy}")

    @property
    def asynchronous(self) -> bool:
        """Whether no round is waited for."""
        return self.mode == ASYNCHRONOUS

    def _stream_sampler(self) -> Sampler:
        own = isinstance(self.scheme, str) and self.scheme == "pace"
        return stream_sampler_for(
            self.scheme,
            self.k,
            buffer=self.buffer,
            times_known=False,
            warm_up=None if self.pilots is None else self.pilots.rounds,
            refresh=None if own else self.refresh,
            max_weight=self.cap,
            c_over_s0=self.c_over_s0,
        )

    def _take_over(self, strategy: FedAvg) -> None:
        """Use the names and the number of nodes that the other strategy was given."""
        if self.keys == Keys():
            names = strategy.weighted_by_key, strategy.arrayrecord_key, strategy.configrecord_key
            self.keys = Keys(*names)
        self.min_available_nodes = max(self.min_available_nodes, strategy.min_available_nodes)

    def sampler(self) -> Sampler:
        """Return what a run draws by."""
        if self.asynchronous:
            return self._stream_sampler()
        return sampler_for(
            self.scheme,
            self.k,
            learn=self.learning,
            refresh=self.refresh,
            max_weight=self.cap,
            c_over_s0=self.c_over_s0,
        )

    @property
    def cap(self) -> float | None:
        """The cap on the weight of one draw: as given, or the usual one."""
        if self.max_weight == "usual":
            return None if isinstance(self.scheme, str) and self.scheme == "pace" else 1.0
        return self.max_weight

    @property
    def learning(self) -> WarmUp | Pilots:
        """How to learn before the first optimal draw: as given, or the usual way."""
        if self.pilots is not None:
            return self.pilots
        short = isinstance(self.scheme, str) and self.scheme in OURS
        return WarmUp(USUAL["warm_up"] if short else USUAL_WARM_UP)

    def made_server(self) -> Server:
        """Return what makes the next model."""
        server = (
            server_named(self.server, self.sampler())
            if isinstance(self.server, str)
            else self.server
        )
        if isinstance(server, type) or not (hasattr(server, "init") and hasattr(server, "apply")):
            got = f"{self.server!r:.80}; see docs/extend.md"
            raise InputError(f"server must be a name or an object with init and apply, got {got}")
        return server

    @property
    def scheme_name(self) -> str:
        """What the scheme is called, in files and messages."""
        return label(self.scheme, SCHEMES)

    @property
    def server_name(self) -> str:
        """What the server is called, in files and messages; another strategy comes first."""
        own = label(self.server)
        return own if self.strategy is None else f"{type(self.strategy).__name__} of {own}"

    @property
    def learning_rounds(self) -> int:
        """How many rounds a scheme learns before its first draw; of other samplers, 0."""
        sampler = self.sampler()
        if isinstance(sampler, Piloted):
            return sampler.pilot_rounds
        if isinstance(sampler, Solve | Pace) and phase_of(sampler, sampler.init(1)) is WARM_UP:
            return sampler.warm_up
        return 0

    @property
    def clients_evaluate(self) -> bool:
        """Whether clients are ever asked to evaluate."""
        return self.evaluate_every > 0 and self.fraction_evaluate > 0

    @property
    def given(self) -> dict[str, int]:
        """The sample counts that are known here, by the clients' names."""
        return {f"{PARTITION}{number}": count for number, count in (self.samples or {}).items()}

    def about(self) -> dict[str, Any]:
        """Return what a checkpoint must agree with."""
        return {
            "flower": self.scheme_name,
            "strategy": None if self.strategy is None else type(self.strategy).__name__,
            "server": self.server_name,
            "sources": [fingerprint(self.scheme), fingerprint(self.server)],
            **{name: getattr(self, name) for name in ("k", "seed", "c_over_s0")},
            "max_weight": self.cap,
            "pilots": asdict(self.learning),
            **({"mode": self.mode, "buffer": self.buffer} if self.asynchronous else {}),
        }

    def remarks(self, rounds: int) -> Iterator[str]:
        """Yield what is worth knowing of these settings, and nothing to worry about."""
        if self.strategy is not None and self.strategy.fraction_train != 1:
            name = type(self.strategy).__name__
            yield f"fraction_train of {name} is not used: k = {self.k} clients are drawn"
        if rounds <= self.learning_rounds:
            lost = f"no round is drawn by {self.scheme_name}: all {rounds} are for learning"
            yield f"{lost}; give more than {self.learning_rounds} rounds, or fewer to pilots"

    def doubts(self, *, evaluated: bool) -> Iterator[str]:
        """Yield what speaks against these settings; `evaluated` says whether the server does."""
        if self.strategy is not None and self.checkpoint is not None:
            name = type(self.strategy).__name__
            yield f"the checkpoint does not keep what {name} remembers between rounds"
        target = (self.target_loss, self.target_accuracy) != (None, None)
        if target and not evaluated and not self.clients_evaluate:
            remedy = "give evaluate_fn, or evaluate_every and fraction_evaluate above 0"
            yield f"nobody evaluates, so no target will be reached; {remedy}"
