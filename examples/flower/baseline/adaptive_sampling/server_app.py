"""The server: FedAvg as it is, or a scheme of fedpace, to the same target and on the same clock."""

import random

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from adaptive_sampling.dataset import split
from adaptive_sampling.model import initial, loss_and_accuracy
from fedpace import inverse
from fedpace.flower import AdaptiveSampling

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train to the target, and print the seconds."""
    settings = context.run_config
    nodes, k, seed = (int(settings[name]) for name in ("nodes", "k", "seed"))
    scheme, plain = str(settings["scheme"]), settings["scheme"] == "fedavg"
    data = split(nodes, seed)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """Return the loss of all training data, and the accuracy on all test data."""
        del server_round
        weights = arrays.to_numpy_ndarrays()
        loss, _ = loss_and_accuracy(weights, data.train.x, data.train.y)
        _, accuracy = loss_and_accuracy(weights, data.test.x, data.test.y)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    ours = AdaptiveSampling(
        k=k,
        scheme="uniform" if plain else scheme,
        mode=str(settings["mode"]),
        schedule=inverse(float(settings["learning-rate"])),
        expected_nodes=nodes,
        fraction_evaluate=0.0,
        target_loss=float(settings["target-loss"]),
        seed=seed,
        out=str(settings["out"]) or None,
    )
    strategy = ours
    if plain:
        random.seed(seed)  # FedAvg draws by it
        theirs = FedAvg(
            fraction_train=k / nodes, min_train_nodes=k, min_available_nodes=nodes,
            fraction_evaluate=0.0,
        )  # fmt: skip
        strategy = ours.recorded(theirs)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(initial()),
        num_rounds=int(settings["num-server-rounds"]),
        train_config=ConfigRecord({}),
        evaluate_fn=evaluate,
    )
    last = strategy.history.rows[-1]
    print(f"{scheme}: loss {last.loss:.3f} after {last.seconds:.1f} s, {last.round} rounds")
