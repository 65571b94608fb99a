"""A device as a process; arguments: PORT CLIENT [SECONDS [CERTIFICATES [NAME]]]."""

import sys
import time
from pathlib import Path
from typing import Any

from fedpace.checks import FloatArray
from fedpace.network.device import serve
from fedpace.network.tls import client_context
from fedpace.network.trainer import Trainer
from fedpace.rounds.local import LocalTrainer
from tests.network.fleet import NAMES, trainer


class Slow(LocalTrainer):
    seconds: float

    def train(
        self, parameters: FloatArray, *, round_index: int, learning_rate: float
    ) -> tuple[FloatArray, float]:
        time.sleep(self.seconds)
        return super().train(parameters, round_index=round_index, learning_rate=learning_rate)


def prepared(client: int, seconds: float) -> Any:
    def prepare(job: dict[str, Any]) -> Trainer:
        made = trainer(client, job["seed"])
        slow = Slow(made.data, made.model, made.seeds, made.client, made.steps)
        object.__setattr__(slow, "seconds", seconds)
        return slow

    return prepare


def main() -> None:
    port, client, seconds, folder, name = [*sys.argv[1:], *["0", "", ""][len(sys.argv) - 3 :]]
    name = name or NAMES[int(client)]
    tls = client_context(Path(folder), name) if folder else None
    prepare = prepared(int(client), float(seconds))
    serve("127.0.0.1", int(port), NAMES[int(client)], prepare, tls=tls)


if __name__ == "__main__":
    main()
