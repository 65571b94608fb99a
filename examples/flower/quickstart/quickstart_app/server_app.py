"""What the server does: nothing of fedpace."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam

from quickstart_app.task import initial

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print how it ended."""
    settings = context.run_config
    strategy = FedAdam(fraction_train=settings["fraction-train"], eta=0.1)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(initial()),
        train_config=ConfigRecord({"lr": settings["lr"]}),
        num_rounds=settings["num-server-rounds"],
    )
    last = max(result.evaluate_metrics_clientapp)
    print(f"round {last}: {dict(result.evaluate_metrics_clientapp[last])}")
