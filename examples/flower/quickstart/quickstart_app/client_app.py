"""What a client does: nothing of fedpace, and no function for queries."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart_app.task import load_data, test, trained

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that was sent."""
    x, y = load_data(context.node_config["partition-id"])
    weights = message.content["arrays"].to_numpy_ndarrays()
    rate = message.content["config"]["lr"]
    weights = trained(weights, x, y, rate, context.run_config["local-steps"])
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the loss and the accuracy on what this client holds."""
    x, y = load_data(context.node_config["partition-id"])
    loss, accuracy = test(message.content["arrays"].to_numpy_ndarrays(), x, y)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(y)}
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=message)
