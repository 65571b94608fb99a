"""An app that checks our backend and our strategy on the grid that it gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedpace.conformance import check_backend
from fedpace.flower import AdaptiveSampling, StartArguments, WarmUp, answer_query

CLIENTS = 3
client = ClientApp()
server = ServerApp()


def received(message: Message) -> np.ndarray:
    return message.content.array_records["arrays"].to_numpy_ndarrays()[0]


@client.train()
def train(message: Message, context: Context) -> Message:
    samples = 1 + int(context.node_config["partition-id"])
    weights = received(message)
    metrics = MetricRecord({"num-examples": samples, "grad-norm": float(samples)})
    arrays = ArrayRecord([weights + 0.2 * (1 - weights)])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    loss = float(((1 - received(message)) ** 2).mean())
    metrics = MetricRecord({"num-examples": 1, "loss": loss})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@client.query()
def query(message: Message, context: Context) -> Message:
    return answer_query(message, context, samples=1 + int(context.node_config["partition-id"]))


@server.main()
def main(grid: Grid, context: Context) -> None:
    arrays = ArrayRecord([np.zeros(3)])
    strategy = AdaptiveSampling(
        query=True,
        k=2,
        scheme="optimal-mean",
        pilots=WarmUp(3),
        expected_nodes=CLIENTS,
        evaluate_every=1,
    )
    check_backend(lambda: strategy.backend_on(grid, StartArguments(arrays, 60.0)))
    strategy.start(grid, arrays, num_rounds=6)
    history = Path(str(context.run_config["history"]))
    strategy.history.write_csv(history)
    asynchronous = AdaptiveSampling(
        k=2,
        scheme="weighted",
        mode="asynchronous",
        buffer=1,
        expected_nodes=CLIENTS,
        evaluate_every=1,
    )
    asynchronous.start(grid, arrays, num_rounds=8)
    asynchronous.history.write_csv(history.with_name("asynchronous.csv"))
    print("the app is over")
