"""The tasks of `bench.py`: small, unlike each other, and none of them a study of the docs.

`TUNING` are those on which constants are chosen; `HELD_OUT` are looked at afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedpace import Seeds
from fedpace.backends.local import LocalUpdates
from fedpace.backends.simulator import Simulator
from fedpace.checks import AnyFloats, FloatArray, Labels
from fedpace.data.shards import Shards, Split
from fedpace.models.model import BaseModel
from fedpace.models.networks import Logistic, SmallCnn
from fedpace.times.availability import ComingAndGoing, Markov
from fedpace.times.links import trace_devices
from fedpace.times.round_times import BaseTimes, Varying
from fedpace.training.backend import Task as Work

# Steps of L-BFGS to the loss that targets are relative to.
TO_OPTIMUM = 150


class _Layers(BaseModel):
    """A model of several matrices in one vector; a subclass gives their shapes."""

    shapes: tuple[tuple[int, ...], ...]
    dtype = np.float32

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def initial(self, rng: np.random.Generator) -> FloatArray:
        parts = [
            rng.standard_normal(math.prod(shape)) / np.sqrt(max(shape[0] - 1, 1))
            for shape in self.shapes
        ]
        return np.concatenate(parts)

    def cut(self, vector: AnyFloats) -> list[AnyFloats]:
        """Return the matrices of each client: views of (m, P)."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        parts = np.split(vector, ends, axis=-1)
        lead = vector.shape[:-1]
        return [p.reshape(*lead, *s) for p, s in zip(parts, self.shapes, strict=True)]


class LeastSquares(_Layers):
    """½ (x w − y)²."""

    def __init__(self, features: int) -> None:
        self.shapes = ((features,),)

    def initial(self, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002
        return np.zeros(self.size)

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        error = np.einsum("mbf,mf->mb", x, parameters) - y
        out[:] = np.einsum("mbf,mb->mf", x, error / y.shape[1])

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        return np.asarray((x @ parameters - y) ** 2 / 2)

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        return np.asarray(-((x @ parameters - y) ** 2))


class MultiLabel(_Layers):
    """Independent logistic regressions, one per label."""

    def __init__(self, features: int, labels: int) -> None:
        self.shapes = ((features, labels),)

    def initial(self, rng: np.random.Generator) -> FloatArray:  # noqa: ARG002
        return np.zeros(self.size)

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        (w,), (to,) = self.cut(parameters), self.cut(out)
        error = (1 / (1 + np.exp(-(x @ w))) - y) / y.shape[1]
        to[:] = x.transpose(0, 2, 1) @ error

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        scores = x @ self.cut(parameters)[0]
        return np.asarray((np.logaddexp(0, scores) - y * scores).sum(axis=1))

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        return np.asarray(((x @ self.cut(parameters)[0] > 0) == (y > 0.5)).mean(axis=1))


class Mlp(_Layers):
    """One hidden layer of tanh, then softmax with cross-entropy."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        self.shapes = ((features + 1, hidden), (hidden + 1, classes))

    def prepare(self, x: AnyFloats) -> AnyFloats:
        return np.concatenate([x, np.ones((len(x), 1))], axis=1).astype(self.dtype)

    def _forward(self, parameters: AnyFloats, x: AnyFloats) -> tuple[AnyFloats, AnyFloats]:
        first, last = self.cut(parameters)
        hidden = np.tanh(x @ first)
        scores = hidden @ last[..., :-1, :] + last[..., -1:, :]
        return hidden, scores

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        _, last = self.cut(parameters)
        hidden, scores = self._forward(parameters, x)
        error = _softmax_error(scores, y)
        to_first, to_last = self.cut(out)
        to_last[:, :-1] = hidden.transpose(0, 2, 1) @ error
        to_last[:, -1] = error.sum(axis=1)
        back = (error @ last[:, :-1].transpose(0, 2, 1)) * (1 - hidden**2)
        to_first[:] = x.transpose(0, 2, 1) @ back

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        return _cross_entropy(self._forward(parameters.astype(self.dtype), x)[1], y)

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        return np.asarray(self._forward(parameters.astype(self.dtype), x)[1].argmax(axis=1) == y)


class Factors(_Layers):
    """Ratings by factors: (x U) · V_item + b_item against a number, ½ error²."""

    def __init__(self, features: int, items: int, rank: int) -> None:
        self.shapes = ((features, rank), (items, rank), (items, 1))
        self._features = features

    def initial(self, rng: np.random.Generator) -> FloatArray:
        return np.asarray(0.5 * rng.standard_normal(self.size) / np.sqrt(self.shapes[0][1]))

    def _parts(self, parameters: AnyFloats, x: AnyFloats) -> tuple[Any, ...]:
        u, v, b = self.cut(parameters)
        who, item = x[..., : self._features], x[..., self._features].astype(np.int64)
        if item.ndim == 1:
            return who, item, who @ u, v[item], b[item, 0]
        m = np.arange(len(item))[:, None]
        return who, item, who @ u, v[m, item], b[m, item, 0]

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        who, item, left, right, bias = self._parts(parameters, x)
        error = ((left * right).sum(axis=2) + bias - y)[..., None] / y.shape[1]
        to_u, to_v, to_b = self.cut(out)
        to_u[:] = who.transpose(0, 2, 1) @ (error * right)
        to_v[:], to_b[:] = 0, 0
        m = np.repeat(np.arange(len(item)), item.shape[1])
        np.add.at(to_v, (m, item.ravel()), (error * left).reshape(m.size, -1))
        np.add.at(to_b, (m, item.ravel()), error.reshape(m.size, 1))

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        _, _, left, right, bias = self._parts(parameters, x)
        return np.asarray(((left * right).sum(axis=1) + bias - y) ** 2 / 2)

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        return -self.losses(parameters, x, y)


class Gru(_Layers):
    """A gated recurrent unit over tokens, that predicts the next one after the last."""

    def __init__(self, tokens: int, hidden: int) -> None:
        self.shapes = ((tokens, 3 * hidden), (hidden, 3 * hidden), (hidden + 1, tokens))
        self._h = hidden

    def _forward(self, parameters: AnyFloats, x: AnyFloats) -> tuple[list[Any], AnyFloats]:
        into, back, last = self.cut(parameters)
        h, tokens = self._h, np.eye(self.shapes[0][0], dtype=parameters.dtype)
        state = np.zeros((*x.shape[:2], h), dtype=parameters.dtype)
        kept: list[Any] = []
        for t in range(x.shape[2]):
            a, b = tokens[x[:, :, t]] @ into, state @ back
            gates = 1 / (1 + np.exp(-(a[..., : 2 * h] + b[..., : 2 * h])))
            update, reset = gates[..., :h], gates[..., h:]
            new = np.tanh(a[..., 2 * h :] + reset * b[..., 2 * h :])
            kept.append((state, b, update, reset, new))
            state = update * state + (1 - update) * new
        kept.append(state)
        return kept, state @ last[:, :-1] + last[:, -1:]

    def gradients(self, parameters: AnyFloats, x: AnyFloats, y: Labels, out: AnyFloats) -> None:
        _, back, last = self.cut(parameters)
        kept, scores = self._forward(parameters, x)
        error = _softmax_error(scores, y)
        to_into, to_back, to_last = self.cut(out)
        to_into[:], to_back[:] = 0, 0
        to_last[:, :-1] = kept[-1].transpose(0, 2, 1) @ error
        to_last[:, -1] = error.sum(axis=1)
        grad = error @ last[:, :-1].transpose(0, 2, 1)
        tokens = np.eye(self.shapes[0][0], dtype=parameters.dtype)
        for t in reversed(range(x.shape[2])):
            state, b, update, reset, new = kept[t]
            d_new = grad * (1 - update) * (1 - new**2)
            d_update = grad * (state - new) * update * (1 - update)
            d_reset = d_new * b[..., 2 * self._h :] * reset * (1 - reset)
            d_a = np.concatenate([d_update, d_reset, d_new], axis=2)
            d_b = np.concatenate([d_update, d_reset, d_new * reset], axis=2)
            to_into += tokens[x[:, :, t]].transpose(0, 2, 1) @ d_a
            to_back += state.transpose(0, 2, 1) @ d_b
            grad = grad * update + d_b @ back.transpose(0, 2, 1)

    def _scores(self, parameters: FloatArray, x: AnyFloats) -> AnyFloats:
        return np.asarray(self._forward(parameters.astype(self.dtype)[None], x[None])[1][0])

    def losses(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> AnyFloats:
        return _cross_entropy(self._scores(parameters, x), y)

    def correct(self, parameters: FloatArray, x: AnyFloats, y: Labels) -> NDArray[Any]:
        return np.asarray(self._scores(parameters, x).argmax(axis=1) == y)


def _softmax_error(scores: AnyFloats, y: Labels) -> AnyFloats:
    scores = np.exp(scores - scores.max(axis=2, keepdims=True))
    scores /= scores.sum(axis=2, keepdims=True)
    m, batch = y.shape
    scores[np.arange(m)[:, None], np.arange(batch), y] -= 1
    return np.asarray(scores / batch)


def _cross_entropy(scores: AnyFloats, y: Labels) -> AnyFloats:
    top = scores.max(axis=1, keepdims=True)
    total = np.log(np.exp(scores - top).sum(axis=1)) + top[:, 0]
    return np.asarray(total - scores[np.arange(len(y)), y])


class Problem(NamedTuple):
    """Clients' samples and a model."""

    split: Split
    model: BaseModel


def _split(xs: Sequence[Any], ys: Sequence[Any]) -> Split:
    shards = Shards.from_clients(list(xs), list(ys))
    return Split(shards, Shards.from_clients([x[:2] for x in xs], [y[:2] for y in ys]))


def _sizes(n: int, total: int, rng: np.random.Generator, spread: float = 1.0) -> NDArray[Any]:
    share = rng.lognormal(0, spread, n)
    return np.asarray(np.maximum((total * share / share.sum()).astype(int), 8))


def logistic(n: int, alpha: float, features: int = 20, classes: int = 5) -> Problem:
    """Each client with a mean and a true model of its own, as far as alpha."""
    rng = np.random.default_rng(101 + n)
    common = rng.standard_normal((features, classes))
    scale = np.arange(1, features + 1) ** -0.4
    xs, ys = [], []
    for size in _sizes(n, 40 * n, rng):
        w = common + alpha * rng.standard_normal((features, classes))
        x = scale * (rng.standard_normal((size, features)) + alpha * rng.standard_normal(features))
        scores = x @ w + rng.gumbel(size=(size, classes))
        xs.append(x)
        ys.append(scores.argmax(axis=1))
    return Problem(_split(xs, ys), Logistic(features, classes, dtype=np.float32))


def least_squares(n: int, spread: float, condition: float, features: int = 12) -> Problem:
    """Every client with another optimum, along a line; inputs of unequal size."""
    rng = np.random.default_rng(202 + n)
    scale = np.geomspace(1, condition**-0.5, features)
    base, line = rng.standard_normal((2, features))
    xs, ys = [], []
    for i, size in enumerate(_sizes(n, 50 * n, rng, 0.6)):
        x = scale * rng.standard_normal((size, features))
        own = base + spread * (2 * i / max(n - 1, 1) - 1) * line
        xs.append(x)
        ys.append(x @ own + 0.3 * rng.standard_normal(size))
    return Problem(_split(xs, ys), LeastSquares(features))


@lru_cache(maxsize=1)
def _digits() -> tuple[FloatArray, NDArray[Any]]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x / 16.0, y.astype(np.int64)


def digits(n: int, classes: int, hidden: int = 0, rare: int = 0) -> Problem:
    """Digits, `classes` of them per client; with `rare`, the last n/10 clients alone hold 0 and 1.

    With `hidden` a network, with −1 a convolution, else a regression.
    """
    x, y = _digits()
    rng = np.random.default_rng(303 + n)
    alone = n // 10 if rare else 0
    pools = {c: rng.permutation(np.flatnonzero(y == c)).tolist() for c in range(10)}
    owners: dict[int, list[int]] = {c: [] for c in range(10)}
    for i in range(n):
        if i >= n - alone:
            mine = [0, 1]
        else:
            mine = [(i * classes + j) % (8 if rare else 10) + (2 if rare else 0)
                    for j in range(classes)]  # fmt: skip
        for c in mine:
            owners[c].append(i)
    rows: list[list[int]] = [[] for _ in range(n)]
    for c, who in owners.items():
        share = rng.dirichlet(np.full(len(who), 2.0))
        ends = (np.cumsum(share) * len(pools[c])).astype(int)
        for i, part in zip(who, np.split(np.array(pools[c]), ends[:-1]), strict=True):
            rows[i] += part.tolist()
    for i, mine_rows in enumerate(rows):
        if len(mine_rows) < 4:
            rows[i] = [*mine_rows, *rng.choice(len(y), 4).tolist()]
    model: BaseModel = Logistic(64, 10, dtype=np.float32)
    if hidden < 0:
        x = np.repeat(np.repeat(x.reshape(-1, 8, 8), 4, axis=1), 4, axis=2)[:, 2:30, 2:30]
        x, model = x.reshape(len(x), -1), SmallCnn(classes=10, channels=4)
    elif hidden:
        model = Mlp(64, hidden, 10)
    return Problem(_split([x[r] for r in rows], [y[r] for r in rows]), model)


def labels(n: int, features: int = 15, count: int = 6) -> Problem:
    rng = np.random.default_rng(404 + n)
    common = rng.standard_normal((features, count))
    xs, ys = [], []
    for size in _sizes(n, 25 * n, rng):
        x = rng.standard_normal((size, features)) + 0.5 * rng.standard_normal(features)
        scores = x @ (common + 0.5 * rng.standard_normal((features, count)))
        xs.append(x)
        ys.append((rng.random(scores.shape) < 1 / (1 + np.exp(-scores))).astype(np.float64))
    return Problem(_split(xs, ys), MultiLabel(features, count))


def ratings(n: int, features: int = 8, items: int = 30, rank: int = 3) -> Problem:
    rng = np.random.default_rng(505 + n)
    u, v = rng.standard_normal((features, rank)) / 2, rng.standard_normal((items, rank))
    xs, ys = [], []
    for size in _sizes(n, 40 * n, rng):
        likes = rng.dirichlet(np.full(items, 0.3))
        who = rng.standard_normal((size, features)) / 2 + 0.7 * rng.standard_normal(features)
        item = rng.choice(items, size, p=likes)
        xs.append(np.column_stack([who, item]))
        ys.append(((who @ u) * v[item]).sum(axis=1) + 0.3 * rng.standard_normal(size))
    return Problem(_split(xs, ys), Factors(features, items, rank))


def sequences(n: int, tokens: int = 8, length: int = 6) -> Problem:
    """Chains of order two, a mixture that differs between clients."""
    rng = np.random.default_rng(606 + n)
    tables = rng.dirichlet(np.full(tokens, 0.15), size=(3, tokens, tokens))
    xs, ys = [], []
    for size in _sizes(n, 40 * n, rng, 0.7):
        chain = np.einsum("k,kabc->abc", rng.dirichlet(np.full(3, 0.5)), tables)
        text = rng.integers(tokens, size=(size, length + 1))
        for t in range(2, length + 1):
            p = chain[text[:, t - 2], text[:, t - 1]].cumsum(axis=1)
            text[:, t] = np.minimum((rng.random((size, 1)) > p).sum(axis=1), tokens - 1)
        xs.append(text[:, :-1])
        ys.append(text[:, -1])
    return Problem(_split(xs, ys), Gru(tokens, 10))


@dataclass(frozen=True)
class BenchTask:
    """A problem, its fleet and how it is trained by default.

    `times` names the distribution of seconds per task of `steps` local steps, of which the share
    `compute` is computing; for "fedscale", `compute` is the mean of that share. `order` assigns
    them: "size" gives the longest to the largest clients, "-size" to the smallest, "index" by
    number, "" at random. A target is reached when of the loss at the start, less the least
    possible, no more than `part` is left.
    """

    name: str
    make: Callable[[], Problem]
    k: int
    steps: int
    rate: float
    times: str = "exponential"
    compute: float = 0.9
    order: str = ""
    schedule: str = "constant"
    optimiser: str = "sgd"
    batch: int = 10
    part: float = 0.1
    known: bool = True
    noise: float = 0.0
    away: bool = False
    own_rate: bool = False
    seconds: float = 3000.0

    def rate_at(self, factor: float) -> Callable[[int], float]:
        """Return the schedule, of `factor` times its usual rate."""
        rate = factor * self.rate
        if self.own_rate:
            return lambda _: math.nan
        return {
            "constant": lambda _: rate,
            "inverse": lambda r: rate / (1 + r),
            "root": lambda r: rate / math.sqrt(1 + r),
            "slow": lambda r: rate / math.sqrt(1 + r / 10),
            "cosine": lambda r: rate * max(0.5 * (1 + math.cos(math.pi * min(r / 400, 1))), 1e-3),
        }[self.schedule]

    def fleet(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """Return the seconds of a local step, and all else, of each client."""
        problem = problem_of(self)
        sizes, n = problem.split.train.sizes, problem.split.train.n
        rng = Seeds(seed).stream("bench-times")
        kind, _, number = self.times.partition(":")
        if kind == "fedscale":
            devices = trace_devices("fedscale")
            drawn = devices[rng.choice(len(devices), n, replace=False)]
            computing = drawn[:, 0] / drawn[:, 0].mean() * self.compute
            link = (1 / drawn[:, 1]) / (1 / drawn[:, 1]).mean() * (1 - self.compute)
            total = computing + link
        else:
            total = _seconds(kind, float(number or 1), n, rng)
            computing = self.compute * total
        if self.order:
            key = {"size": sizes, "-size": -sizes, "index": np.arange(n)}[self.order]
            whose = np.empty(n, dtype=np.int64)
            whose[np.argsort(key, kind="stable")] = np.argsort(total, kind="stable")
            computing, total = computing[whose], total[whose]
        return computing / self.steps, total - computing

    def backend(self, seed: int, factor: float, steps: int | None) -> Simulator:
        """Return the simulator of a run with `steps` local steps, by default the task's own."""
        steps = self.steps if steps is None else steps
        problem, (each, rest) = problem_of(self), self.fleet(seed)
        seeds = Seeds(seed)
        times: BaseTimes = Varying(each * steps + rest, seeds, noise=self.noise)
        if self.away:
            times = ComingAndGoing(times, Markov(times.usual.size, 20.0, 10.0, seeds))
        make = OwnRate if self.own_rate else Simulator
        backend = make(
            problem.split,
            problem.model,
            times,
            seeds,
            local_steps=steps,
            batch=self.batch,
            optimiser=self.optimiser,
            times_known=self.known,
        )
        if isinstance(backend, OwnRate):
            backend.rate = factor * self.rate
        return backend


class OwnRate(Simulator):
    """Clients that know their learning rate, and do not say it."""

    rate: float

    def train_tasks(self, tasks: Sequence[Work]) -> list[LocalUpdates]:
        return super().train_tasks([task._replace(learning_rate=self.rate) for task in tasks])

    def train_task(self, task: Work) -> LocalUpdates:
        return super().train_task(task._replace(learning_rate=self.rate))


def _seconds(kind: str, number: float, n: int, rng: np.random.Generator) -> FloatArray:
    """Draw the seconds of a task of each client; of a bimodal fleet the last tenth is slow."""
    if kind == "exponential":
        return rng.exponential(1, n)
    if kind == "bimodal":
        return np.where(np.arange(n) >= n - n // 10, number, 1.0) * rng.uniform(0.8, 1.25, n)
    if kind == "pareto":
        return rng.pareto(1.3, n) + 0.2
    return rng.lognormal(0, number, n) if kind == "lognormal" else np.ones(n)


@lru_cache(maxsize=32)
def problem_of(task: BenchTask) -> Problem:
    return task.make()


@lru_cache(maxsize=64)
def target_of(task: BenchTask, seed: int) -> tuple[float, float, float]:
    """Return the target, the loss at the start, and the least that L-BFGS finds from there."""
    problem = problem_of(task)
    train, model = problem.split.train, problem.model
    x, whole = model.prepare(train.x), model.prepare_whole(train.x)
    start = model.initial(Seeds(seed).stream("init"))
    gradient = np.empty((1, model.size), dtype=model.dtype)

    def loss_and_gradient(w: FloatArray) -> tuple[float, FloatArray]:
        model.gradients(w.astype(model.dtype)[None], x[None], train.y[None], gradient)
        loss = float(model.losses(w, whole, train.y).mean(dtype=np.float64))
        return loss, gradient[0].astype(np.float64)

    first = loss_and_gradient(start)[0]
    options = {"maxiter": TO_OPTIMUM}
    found = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options)
    least = float(found.fun)
    return least + task.part * (first - least), first, least


TUNING = (
    BenchTask("logistic", lambda: logistic(60, 0.5), 6, 20, 0.1),
    BenchTask(
        "squares-by-speed", lambda: least_squares(40, 2.0, 30), 5, 10, 0.03, order="index",
        part=0.02,
    ),
    BenchTask("digits-two", lambda: digits(50, 2), 5, 10, 0.1, schedule="slow", compute=0.5),
    BenchTask(
        "bimodal", lambda: digits(60, 3, rare=1), 6, 10, 0.1, times="bimodal:20", order="",
    ),
    BenchTask(
        "network", lambda: digits(30, 3, hidden=16), 4, 20, 0.05, times="pareto",
        optimiser="momentum:0.9", schedule="root", compute=0.5, known=False, noise=0.3,
    ),
    BenchTask("ratings", lambda: ratings(80), 10, 20, 0.1, times="lognormal:1", order="size"),
    BenchTask(
        "labels", lambda: labels(200), 20, 10, 0.1, times="fedscale", compute=0.3, part=0.05,
    ),
    BenchTask("sequences", lambda: sequences(40), 5, 10, 1.0, times="fedscale", part=0.5),
    BenchTask(
        "convolution", lambda: digits(24, 4, hidden=-1), 4, 10, 0.1, times="exponential",
        order="-size",
    ),
    BenchTask(
        "adam", lambda: digits(40, 3), 4, 10, 0.01, optimiser="adam", compute=0.5, part=0.2,
    ),
    BenchTask("one", lambda: logistic(20, 0.3), 1, 10, 0.1, times="equal"),
    BenchTask(
        "come-and-go", lambda: logistic(80, 0.4), 8, 10, 0.1, known=False, noise=0.5, away=True,
        own_rate=True,
    ),
    BenchTask("inverse", lambda: logistic(100, 0.3), 10, 50, 0.1, schedule="inverse"),
)  # fmt: skip
HELD_OUT = (
    BenchTask(
        "many-drift", lambda: logistic(300, 0.7, features=30, classes=8), 15, 50, 0.1,
    ),
    BenchTask(
        "squares-hidden", lambda: least_squares(25, 1.0, 100), 3, 20, 0.03, known=False, noise=0.5,
        times="pareto", schedule="cosine", part=0.05,
    ),
    BenchTask(
        "network-two", lambda: digits(60, 2, hidden=24), 8, 10, 0.1, times="lognormal:1.2",
    ),
    BenchTask(
        "bimodal-links", lambda: digits(80, 2, rare=1), 10, 10, 0.1, times="bimodal:10",
        compute=0.3,
    ),
    BenchTask(
        "ratings-own", lambda: ratings(50), 5, 10, 0.1, times="fedscale", compute=0.9,
        own_rate=True, order="-size",
    ),
    BenchTask(
        "sequences-adam", lambda: sequences(30), 6, 10, 0.01, optimiser="adam", part=0.5,
    ),
)  # fmt: skip
TASKS = {task.name: task for task in (*TUNING, *HELD_OUT)}


def with_changes(task: BenchTask, **changes: Any) -> BenchTask:
    return replace(task, **changes)
