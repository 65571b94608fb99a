"""A client: local steps of SGD, and a pause that makes slow devices of equal ones."""

import time

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from adaptive_sampling.dataset import seconds, split
from adaptive_sampling.model import gradients
from fedpace.flower import GradientNorms

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that was sent."""
    began, settings = time.monotonic(), context.run_config
    me, nodes = int(context.node_config["partition-id"]), int(settings["nodes"])
    config = message.content["config"]
    # AdaptiveSampling sets the rate of the round; with FedAvg it is computed here.
    rate = float(config.get("lr", settings["learning-rate"] / config["server-round"]))
    mine = split(nodes, int(settings["seed"])).train.client(me)
    x, y = mine.x, mine.y
    weights, norms = message.content["arrays"].to_numpy_ndarrays(), GradientNorms()
    rng = np.random.default_rng((int(config["server-round"]), me))
    for _ in range(int(settings["local-steps"])):
        batch = rng.integers(len(y), size=int(settings["batch-size"]))
        slopes = gradients(weights, x[batch], y[batch])
        norms.add(slopes)
        weights = [w - rate * slope for w, slope in zip(weights, slopes, strict=True)]
    usual = seconds(nodes, int(settings["seed"]), float(settings["time-scale"]))[me]
    time.sleep(max(began + usual - time.monotonic(), 0.0))
    metrics = MetricRecord({"num-examples": len(y), **norms.metrics()})
    content = RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics})
    return Message(content=content, reply_to=message)
