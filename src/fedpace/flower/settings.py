"""Settings of adaptive sampling in Flower."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from flwr.app import Message, MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy

from fedpace.backends.privacy import Privacy
from fedpace.backends.remote.roster import WALL, Clock
from fedpace.checks import positive_count
from fedpace.errors import InputError, nearest
from fedpace.flower.nodes import BY_PARTITION, Node
from fedpace.flower.replies import mean_metrics
from fedpace.lookup import fingerprint, label
from fedpace.registry import ASYNCHRONOUS, AUTO, METHODS, MODES, SAMPLER, SYNCHRONOUS
from fedpace.samplers.build import DEFAULT_WARM_UP, SAMPLER_DEFAULTS, Pilots, WarmUp, sampler_for
from fedpace.samplers.local_work import check_local_steps
from fedpace.samplers.pace import Pace
from fedpace.samplers.pilots import Piloted
from fedpace.samplers.solve import WARM_UP, Solve
from fedpace.sampling.schemes import SCHEMES, Scheme
from fedpace.sampling.solvers.solution import check_cap
from fedpace.servers.build import server_for
from fedpace.training.sampler import BaseSampler
from fedpace.training.server import BaseServer, as_server, check_asynchronous
from fedpace.training.share_limit import LARGEST_SHARE, check_share
from fedpace.training.stopping import Schedule

# What to give instead of the arguments of Flower's FedAvg.
HINTS = {
    **dict.fromkeys(("fraction_train", "min_train_nodes"), "give k, the clients of a round"),
    "min_evaluate_nodes": "give fraction_evaluate",
    "weighted_by_key": "give keys=Keys(samples=…), from fedpace.flower.settings",
    "arrayrecord_key": "give keys=Keys(arrays=…), from fedpace.flower.settings",
    "configrecord_key": "give keys=Keys(config=…), from fedpace.flower.settings",
    "train_metrics_aggr_fn": "give AdaptiveSampling(FedAvg(train_metrics_aggr_fn=…), k=10)",
    "evaluate_metrics_aggr_fn": "give AdaptiveSampling(FedAvg(evaluate_metrics_aggr_fn=…), k=10)",
}
# Strategies that cannot aggregate a weighted draw without bias.
UNWEIGHTED = "takes no weights, so that clients drawn more often count for more"
CHOOSING = "chooses among the replies, so that weights of a draw lose their meaning"
REFUSED = {
    **dict.fromkeys(("FedMedian", "FedTrimmedAvg"), UNWEIGHTED),
    **dict.fromkeys(("Krum", "MultiKrum", "Bulyan"), CHOOSING),
    "QFedAvg": "weights replies by their losses",
    "FedXgbBagging": "joins trees instead of averaging",
    "FedXgbCyclic": "trains one client after the other",
}


# A deadline that follows from how long clients take.
LEARNED = "learned"


@dataclass(frozen=True)
class Keys:
    """Names of records and metrics in messages; the defaults are Flower's."""

    samples: str = "num-examples"
    arrays: str = "arrays"
    config: str = "config"
    learning_rate: str = "lr"


@dataclass(eq=False)
class Settings(Strategy):
    """Hold and check the settings of a strategy.

    Parameters
    ----------
    strategy : FedAvg, FedAdam, FedYogi, FedProx, FedAvgM, or a subclass of these, optional
        Configures the messages and aggregates, while fedpace draws and weights: see
        `WrappedServer`. In the mode "asynchronous" its `aggregate_train` must be FedAvg's.
    k : int ≥ 1
        K, the clients in a round; schemes draw with replacement, so that at most K get a message.
    scheme : str, Scheme, BaseSampler, or a class of samplers
        pace, which needs no setting; full, uniform, weighted, statistical, optimal-mean,
        optimal-max, …; `file.py:name`, `module:name`, or an object. A class is called with `k=k`.
    server : str or BaseServer
        How replies become the next model: average, memory, adam:RATE, yogi:RATE; clip:FACTOR,
        trimmed:SHARE, krum:COUNT against faulty clients; `file.py:name`, or an object. auto is
        memory for `pace`, and average for all others.
    max_weight : float > 0, None, or "usual"
        Cap on the weight of one draw, p_i / (K q_i) in a scheme, at least 1/k; None for no cap.
        "usual" is 1 for a scheme, and None for pace, which caps the weight of a round itself.
    pilots : WarmUp or Pilots, optional
        How to learn before the first optimal draw: rounds of weighted sampling that count as
        training, by default three for pace and ten for a scheme that learns; or, for a scheme, the
        two pilots of the paper's Algorithm 2.
    mode : "synchronous", "asynchronous" or "auto"
        Synchronous rounds wait for the slowest client drawn. In asynchronous training `k` clients
        are always at work, each gets the newest model as soon as it is free, and every `buffer`
        updates make a step; rounds are then steps. "auto" begins `pace` with rounds, and continues
        asynchronously if times, norms and variance, as measured in the warm-up, predict that this
        is sooner; a round then counts as k updates. Other schemes stay synchronous.
    buffer : int ≥ 1, optional
        Updates in a step, in the mode "asynchronous"; by default the scheme's own, else `k`.
    refresh : int ≥ 1
        Rounds after which the probabilities are solved again, and new nodes join the draw.
    c_over_s0 : float ≥ 0, optional
        c = β/α in units of S_0; by default 1, or the estimate of two pilots, or of pace.
    seed : int ≥ 0
        For the draws.
    deadline : float > 0, seconds, or "learned", optional
        Replies later than this are missing; by default the `timeout` of `start`. "learned": three
        times the usual time of the slowest client drawn, at most `timeout`.
    take : int ≥ 1, optional
        End a round with the first `take` replies of the `k` clients drawn. The others are missing,
        and a client that is often late gets a larger weight when it is in time.
    eligible : collection of int, or function of a Node, optional
        Which nodes may take part: partitions or node ids, or what returns True for a `Node`, which
        has the `properties` that clients give to `answer_query`. Asked when a node joins.
    min_available_nodes, expected_nodes : int ≥ 1, int or None
        Nodes that must be connected before any round, and before the first. With the same nodes,
        draws repeat.
    wait : float, seconds
        Seconds to wait for clients before TooFewClientsError.
    query : bool
        Ask new nodes for partition and sample count, if the ClientApp uses `answer_query`.
    count_start : bool
        Count the federation's start-up in the run's seconds and in the clients' first times.
    largest_share : float in (0, 1]
        Share of the rounds that one client may be in, but at least twice its fair share.
    samples : mapping of partitions to counts, optional
        Sample counts that you know; those that clients report are then ignored.
    most_samples : float ≥ 1, optional
        Cap on a sample count that only the client reports, in multiples of the mean of the smaller
        counts, for clients that you do not trust; 12 is a good value. A cap that binds changes the
        objective, and is logged. By default there is none.
    privacy : Privacy, optional
        The arguments of `privacy_mod` in the ClientApp, for the account: ε is logged at the end and
        is in the report. The server adds no noise itself.
    fraction_evaluate : float in [0, 1], optional
        Share of connected clients that evaluate the model; by default that of `strategy`, else 1.
    evaluate_every : int ≥ 0
        Clients evaluate in every n-th round and in the last; 0 for never.
    schedule : function of the round, optional
        Sets the learning rate in the messages' config, under `keys.learning_rate`.
    local_steps : int ≥ 1 or "auto", optional
        E, for clients that report neither gradient norm nor steps. "auto" lets asynchronous `pace`
        choose it: the config holds `local-steps`, and a ClientApp that takes as many and returns
        `local-steps` among its metrics confirms them. With any other, E stays as it is.
    target_loss, target_accuracy : float, optional
        End when the evaluation reaches it.
    checkpoint : path, optional
        A file that is written after every round. If it exists, `start` resumes from it.
    out : path, optional
        A directory to which the finished run is added, for `fedpace report`.
    keys, clock : Keys, Clock
        Names of records and metrics in messages, and the time, which tests replace.
    """

    strategy: FedAvg | None = None
    _: KW_ONLY
    k: int
    scheme: str | Scheme | BaseSampler | type[Any] = "pace"
    server: str | BaseServer = "auto"
    max_weight: float | Literal["usual"] | None = "usual"
    pilots: WarmUp | Pilots | None = None
    mode: Literal["synchronous", "asynchronous", "auto"] = "synchronous"
    buffer: int | None = None
    refresh: int = 10
    c_over_s0: float | None = None
    seed: int = 0
    deadline: float | Literal["learned"] | None = None
    take: int | None = None
    eligible: Collection[int] | Callable[[Node], bool] | None = None
    min_available_nodes: int = 2
    expected_nodes: int | None = None
    wait: float = 600.0
    query: bool = False
    count_start: bool = False
    largest_share: float = LARGEST_SHARE
    samples: Mapping[int, int] | None = None
    most_samples: float | None = None
    privacy: Privacy | None = None
    fraction_evaluate: float | None = None
    evaluate_every: int = 10
    schedule: Schedule | None = None
    local_steps: int | str | None = None
    target_loss: float | None = None
    target_accuracy: float | None = None
    checkpoint: str | Path | None = None
    out: str | Path | None = None
    keys: Keys = Keys()
    clock: Clock = WALL

    def __new__(cls, *_: object, **named: object) -> Self:
        """Refuse the arguments of Flower's FedAvg, and name what replaces them."""
        for name, remedy in HINTS.items():
            if name in named:
                raise InputError(f"{cls.__name__} takes no {name}; {remedy}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        positive_count("k", self.k)
        self._check_mode()
        if self.strategy is not None:
            self._adopt(self.strategy)
        positive_count("min_available_nodes", self.min_available_nodes, "give 2")
        remedy = "give WarmUp(10), or a scheme that learns nothing"
        positive_count("pilots.rounds", self.learning.rounds, remedy)
        if self.cap is not None:
            check_cap("max_weight", self.cap, self.buffer or self.k)
        if not 0 <= (share := self.evaluating_share) <= 1:
            raise InputError(f"fraction_evaluate must lie in [0, 1], got {share}; give 1 for all")
        number = isinstance(self.deadline, (int, float))
        if self.deadline not in (None, LEARNED) and not (number and float(self.deadline) > 0):
            got = f"{self.deadline!r}; leave it out, or give 'learned'"
            raise InputError(f"deadline must be positive, got {got}")
        if self.take is not None:
            positive_count("take", self.take, f"give 1 to {self.k}", most=self.k)
        if self.take is not None and self.mode != SYNCHRONOUS:
            remedy = "give mode='synchronous', or leave it out"
            raise InputError(f"take needs rounds, got mode {self.mode}; {remedy}")
        if self.most_samples is not None and not self.most_samples >= 1:
            remedy = "give 12, or leave it out"
            raise InputError(f"most_samples must be at least 1, got {self.most_samples}; {remedy}")
        check_share("largest_share", self.largest_share)
        for partition, count in (self.samples or {}).items():
            positive_count(f"samples of partition {partition}", count)
        check_local_steps(self.local_steps)
        if self.local_steps == "auto" and not (self.asynchronous and self.scheme == "pace"):
            got = f"auto for {label(self.scheme)} in mode {self.mode}"
            remedy = "give scheme='pace' and mode='asynchronous'"
            raise InputError(f"local_steps must be a number, or left out, got {got}; {remedy}")
        self.sampler()
        server = self.build_server()
        if self.asynchronous:
            check_asynchronous(server)

    def _check_mode(self) -> None:
        if self.mode not in (*MODES, AUTO):
            got = f"{self.mode!r}; {nearest(str(self.mode), (*MODES, AUTO))}"
            raise InputError(f"mode must be synchronous, asynchronous or auto, got {got}")
        if self.buffer is not None:
            positive_count("buffer", self.buffer, "give the updates in a step")
        if self.buffer is not None and not self.asynchronous:
            remedy = "give mode='asynchronous', or leave it out"
            raise InputError(f"buffer has no meaning in rounds, got {self.buffer}; {remedy}")
        if self.asynchronous and isinstance(self.pilots, Pilots):
            remedy = "give pilots=WarmUp(10), or mode='synchronous'"
            raise InputError(f"pilots need rounds, got mode asynchronous; {remedy}")

    def _adopt(self, strategy: FedAvg) -> None:
        """Check a wrapped strategy, and use its keys and its number of nodes."""
        name = type(strategy).__name__
        if not isinstance(strategy, FedAvg):
            raise InputError(
                "strategy must be FedAvg, FedAdam, FedYogi, FedProx, FedAvgM or a subclass of "
                f"these, from flwr.serverapp.strategy, got {name} of {type(strategy).__module__}; "
                "write AdaptiveSampling(k=10), or give one"
            )
        for kind in (each.__name__ for each in type(strategy).__mro__):
            if reason := REFUSED.get(kind):
                remedy = f"give FedAvg or FedAdam, or use {kind} without fedpace"
                got = f"{name}, which {reason}; {remedy}"
                raise InputError(f"strategy must aggregate by weights, got {got}")
        if self.asynchronous and not self._averages:
            got = f"{name}; give server='adam:0.1', or leave mode out"
            raise InputError(f"strategy must aggregate as FedAvg in mode asynchronous, got {got}")
        if self.keys == Keys():
            names = strategy.weighted_by_key, strategy.arrayrecord_key, strategy.configrecord_key
            self.keys = Keys(*names)
        self.min_available_nodes = max(self.min_available_nodes, strategy.min_available_nodes)

    @property
    def asynchronous(self) -> bool:
        """Whether training is asynchronous."""
        return self.mode == ASYNCHRONOUS

    @property
    def _averages(self) -> bool:
        """Whether a wrapped strategy, if any, aggregates as FedAvg does."""
        kind = FedAvg if self.strategy is None else type(self.strategy)
        return kind.aggregate_train is FedAvg.aggregate_train

    @property
    def averages_itself(self) -> bool:
        """Whether fedpace aggregates, and not a wrapped strategy."""
        auto = self.mode == AUTO and self._averages
        return self.strategy is None or self.asynchronous or auto

    def sampler(self, *, rounds: bool = False) -> BaseSampler:
        """Return the sampler of a run; with `rounds` it stays synchronous in the mode "auto"."""
        stays = rounds or not self._averages or isinstance(self.pilots, Pilots)
        paced = self.asynchronous and isinstance(self.scheme, str) and self.scheme == "pace"
        knobs = {"local_steps": "auto"} if self.local_steps == "auto" else None
        return sampler_for(
            self.scheme,
            self.k,
            mode=SYNCHRONOUS if stays and self.mode == AUTO else self.mode,
            learn=self.pilots if self.asynchronous else self.learning,
            refresh=None if paced else self.refresh,
            max_weight=self.cap,
            c_over_s0=self.c_over_s0,
            buffer=self.buffer,
            times_known=False,
            knobs=knobs,
        )

    @property
    def usual_steps(self) -> int | None:
        """E of clients that do not report it, where it is given."""
        return self.local_steps if isinstance(self.local_steps, int) else None

    @property
    def cap(self) -> float | None:
        """The cap on the weight of one draw."""
        if self.max_weight == "usual":
            return None if isinstance(self.scheme, str) and self.scheme == "pace" else 1.0
        return self.max_weight

    @property
    def learning(self) -> WarmUp | Pilots:
        """How to learn before the first optimal draw."""
        if self.pilots is not None:
            return self.pilots
        entry = METHODS.get(self.scheme) if isinstance(self.scheme, str) else None
        short = entry is not None and entry.kind == SAMPLER
        return WarmUp(SAMPLER_DEFAULTS["warm_up"] if short else DEFAULT_WARM_UP)

    def build_server(self) -> BaseServer:
        """Return the server rule of a run."""
        if isinstance(self.server, str):
            return server_for(self.server, self.sampler())
        return as_server(self.server)

    def patience(self, timeout: float) -> float:
        """Return the longest wait for a reply."""
        return self.deadline if isinstance(self.deadline, (int, float)) else timeout

    @property
    def scheme_name(self) -> str:
        """The scheme's name, in files and messages."""
        return label(self.scheme, SCHEMES)

    @property
    def server_name(self) -> str:
        """The server's name, in files and messages, after that of a wrapped strategy."""
        own = label(self.server)
        return own if self.strategy is None else f"{type(self.strategy).__name__} of {own}"

    @property
    def learning_rounds(self) -> int:
        """The rounds that a scheme learns before its first draw; 0 for other samplers."""
        sampler = self.sampler()
        if isinstance(sampler, Piloted):
            return sampler.pilot_rounds
        if isinstance(sampler, Solve | Pace):
            begins: BaseSampler = sampler
            return sampler.warm_up if begins.phase(begins.init(1)) is WARM_UP else 0
        return 0

    @property
    def evaluating_share(self) -> float:
        """The share of connected clients that evaluate."""
        if self.fraction_evaluate is not None:
            return self.fraction_evaluate
        return 1.0 if self.strategy is None else self.strategy.fraction_evaluate

    @property
    def clients_evaluate(self) -> bool:
        """Whether clients are ever asked to evaluate."""
        return self.evaluate_every > 0 and self.evaluating_share > 0

    @property
    def roster_settings(self) -> dict[str, Any]:
        """Sample counts known here, by the clients' names, and the cap on all others."""
        given = {f"{BY_PARTITION}{number}": n for number, n in (self.samples or {}).items()}
        return {"given": given, "most": self.most_samples}

    def average_train_metrics(self, replies: Sequence[Message]) -> MetricRecord | None:
        """Return the clients' metrics, averaged; by a wrapped strategy's function if fedpace does.

        A wrapped strategy that aggregates itself replaces them.
        """
        function = None if self.strategy is None else self.strategy.train_metrics_aggr_fn
        if (
            self.averages_itself
            and function not in (None, FedAvg().train_metrics_aggr_fn)
            and replies
        ):
            return function([each.content for each in replies], self.keys.samples)
        return mean_metrics(replies, self.keys.samples, most=self.most_samples)

    def about(self) -> dict[str, Any]:
        """Return what a checkpoint must agree with."""
        return {
            "flower": self.scheme_name,
            "strategy": None if self.strategy is None else type(self.strategy).__name__,
            "server": self.server_name,
            "sources": [fingerprint(self.scheme), fingerprint(self.server)],
            "k": self.k,
            "seed": self.seed,
            "c_over_s0": self.c_over_s0,
            "max_weight": self.cap,
            "pilots": asdict(self.learning),
            **({} if self.mode == SYNCHRONOUS else {"mode": self.mode, "buffer": self.buffer}),
            **({} if self.strategy is None else {"moments": True}),  # older files lack them
        }

    def remarks(self, rounds: int) -> Iterator[str]:
        """Yield remarks about settings that have no effect."""
        if self.strategy is not None:
            name = type(self.strategy).__name__
            if self.strategy.fraction_train != 1:
                yield f"fraction_train of {name} is not used: k = {self.k} clients are drawn"
            if type(self.strategy).start is not Strategy.start:
                yield f"start of {name} is not called: AdaptiveSampling drives the rounds"
        if rounds <= self.learning_rounds:
            lost = f"no round is drawn by {self.scheme_name}: all {rounds} are for learning"
            yield f"{lost}; give more than {self.learning_rounds} rounds, or fewer to pilots"

    def doubts(self, *, evaluated: bool) -> Iterator[str]:
        """Yield warnings; `evaluated` says whether the server evaluates."""
        target = (self.target_loss, self.target_accuracy) != (None, None)
        if target and not evaluated and not self.clients_evaluate:
            remedy = "give evaluate_fn, or evaluate_every and fraction_evaluate above 0"
            yield f"no client evaluates, so no target will be reached; {remedy}"
