"""What a client does; the lines marked + are all that fedpace adds."""

from __future__ import annotations

import time

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpace.flower import GradientNorms, answer_query  # +
from logistic_app.task import gradients, loss_and_accuracy, samples

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run some steps of SGD from the model that was sent."""
    config = message.content.config_records["config"]
    x, y = samples(int(context.node_config["partition-id"]))
    weights = message.content.array_records["arrays"].to_numpy_ndarrays()
    rng = np.random.default_rng((int(config["server-round"]), len(y)))
    norms = GradientNorms()  # +
    for _ in range(int(config.get("local-steps", context.run_config["local-steps"]))):
        batch = rng.integers(len(y), size=16)
        slopes = gradients(weights, x[batch], y[batch])
        norms.add(slopes)  # +
        weights = [w - float(config["lr"]) * g for w, g in zip(weights, slopes, strict=True)]
    time.sleep(float(context.node_config.get("delay", 0.0)))  # a slow device, for trials
    metrics = MetricRecord({"num-examples": len(y), **norms.metrics()})  # +
    content = RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the loss and the accuracy on what this client holds."""
    x, y = samples(int(context.node_config["partition-id"]))
    weights = message.content.array_records["arrays"].to_numpy_ndarrays()
    loss, accuracy = loss_and_accuracy(weights, x, y)
    metrics = MetricRecord({"num-examples": len(y), "loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query()  # +
def query(message: Message, context: Context) -> Message:  # +
    """Say who this is, and how much it holds."""
    y = samples(int(context.node_config["partition-id"]))[1]  # +
    return answer_query(message, context, samples=len(y))  # +
