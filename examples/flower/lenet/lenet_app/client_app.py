"""What a client does; the mod `measure_mod` is all that fedpace needs: training stays as it was."""

from __future__ import annotations

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from fedpace.flower import answer_query, measure_mod
from lenet_app.task import LeNet5, samples

app = ClientApp(mods=[measure_mod])
torch.set_num_threads(1)


def received(message: Message) -> LeNet5:
    """Return the model that was sent."""
    model = LeNet5()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run some steps of SGD from the model that was sent."""
    config = message.content.config_records["config"]
    x, y = samples(int(context.node_config["partition-id"]))
    model = received(message)
    optimiser = torch.optim.SGD(model.parameters(), lr=float(config["lr"]))
    rng = torch.Generator().manual_seed(int(config["server-round"]))
    for _ in range(int(config.get("local-steps", context.run_config["local-steps"]))):
        batch = torch.randint(len(y), (16,), generator=rng)
        optimiser.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()
        optimiser.step()
    time.sleep(float(context.node_config.get("delay", 0.0)))  # a slow device, for trials
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the loss and the accuracy on what this client holds."""
    x, y = samples(int(context.node_config["partition-id"]))
    with torch.no_grad():
        scores = received(message)(x)
    metrics = MetricRecord(
        {
            "num-examples": len(y),
            "loss": float(cross_entropy(scores, y)),
            "accuracy": float((scores.argmax(dim=1) == y).float().mean()),
        }
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this is, and how much it holds."""
    y = samples(int(context.node_config["partition-id"]))[1]
    return answer_query(message, context, samples=len(y))
