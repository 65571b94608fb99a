"""A dozen clients with their own data: the same fleet for the simulator and for Flower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpace.backends.local import LocalSteps, LocalTrainer
from fedpace.backends.simulator import Simulator
from fedpace.checks import FloatArray
from fedpace.data.partition import synthetic
from fedpace.data.shards import Split
from fedpace.flower import AdaptiveSampling, WarmUp
from fedpace.flower.client import answer_query
from fedpace.models.networks import Logistic
from fedpace.seeds import Seeds
from fedpace.times.round_times import Steady
from fedpace.training.backend import Evaluation
from tests.flower.memory_grid import MemoryGrid

CLIENTS, FEATURES, CLASSES = 12, 8, 3
SEED = 7
STEPS, BATCH = 5, 8
RATE = 0.05
SIZES = np.array([60, 12, 20, 90, 15, 33, 41, 18, 25, 70, 11, 30])
MODEL = Logistic(FEATURES, CLASSES)
SEEDS = Seeds(SEED)
DATA = synthetic(
    SIZES,
    SEEDS.stream("data"),
    alpha=1.0,
    beta=1.0,
    features=FEATURES,
    classes=CLASSES,
    test_share=0.2,
)
TIMES: FloatArray = SEEDS.stream("times").exponential(size=CLIENTS) + 0.2


def simulator(kind: type[Simulator] = Simulator) -> Simulator:
    """Return the fleet in our simulator, which does not know the times beforehand."""
    return kind(
        DATA, MODEL, Steady(TIMES), SEEDS, local_steps=STEPS, batch=BATCH, times_known=False
    )


def evaluated(parameters: FloatArray) -> Evaluation:
    """Evaluate a model on the whole fleet."""
    found = simulator().evaluate(parameters)
    assert found is not None
    return found


def trainer(client: int) -> LocalTrainer:
    own = Split(DATA.train.client(client), DATA.test.client(client))
    return LocalTrainer(own, MODEL, SEEDS, client, LocalSteps(STEPS, BATCH))


def as_record(parameters: FloatArray) -> ArrayRecord:
    """Return W and b apart, as a Flower user would have them."""
    rows = parameters.reshape(CLASSES, FEATURES + 1)
    return ArrayRecord([rows[:, :-1].copy(), rows[:, -1].copy()])


def as_vector(arrays: ArrayRecord) -> FloatArray:
    matrix, intercept = arrays.to_numpy_ndarrays()
    return np.column_stack([matrix, intercept]).astype(np.float64).ravel()


def client_app(
    *,
    query: bool = True,
    norms: bool = True,
    chosen_steps: bool = False,
    change: Callable[[Message, int], None] | None = None,
    mods: Sequence[Any] = (),
) -> ClientApp:
    """Return an app whose clients train as the simulator's do; `change` spoils replies."""
    app = ClientApp(mods=[*mods])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        start = as_vector(message.content.array_records["arrays"])
        config = message.content.config_records["config"]
        round_index = int(config["server-round"]) - 1  # type: ignore[arg-type]
        local = trainer(client)
        steps = config.get("local-steps") if chosen_steps else None
        update, norm = local.train(
            start,
            round_index=round_index,
            learning_rate=RATE,
            local_steps=None if steps is None else int(steps),  # type: ignore[arg-type]
        )
        metrics = MetricRecord({"num-examples": local.samples, "train_loss": local.loss(start)})
        if norms:
            metrics["grad-norm"] = norm
        if steps is not None:
            metrics["local-steps"] = int(steps)  # type: ignore[arg-type]
        content = RecordDict({"arrays": as_record(start + update), "metrics": metrics})
        reply = Message(content, reply_to=message)
        if change is not None:
            change(reply, client)
        return reply

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        local = trainer(int(context.node_config["partition-id"]))
        loss, correct, held_out = local.evaluate(as_vector(message.content.array_records["arrays"]))
        metrics = {"eval_loss": loss, "eval_acc": correct / max(held_out, 1)}
        record = MetricRecord({**metrics, "num-examples": local.samples})
        return Message(RecordDict({"metrics": record}), reply_to=message)

    if query:

        @app.query()
        def answer(message: Message, context: Context) -> Message:
            client = int(context.node_config["partition-id"])
            return answer_query(message, context, samples=int(DATA.train.sizes[client]))

    return app


def steady(client: int, _: int) -> float:
    return float(TIMES[client])


START = as_record(simulator().initial())


def grid_with(**options: Any) -> MemoryGrid:
    return MemoryGrid(client_app(**options), steady, partitions=range(CLIENTS))


def strategy_on(grid: MemoryGrid, **settings: Any) -> AdaptiveSampling:
    usual: dict[str, Any] = {
        "k": 4, "scheme": "optimal-mean", "pilots": WarmUp(5),
        "min_available_nodes": CLIENTS, "fraction_evaluate": 0.0, "query": True,
        "count_start": True,
    }  # fmt: skip
    return AdaptiveSampling(**(usual | settings), clock=grid.clock)
