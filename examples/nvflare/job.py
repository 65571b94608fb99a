"""Adaptive sampling in NVFlare's simulator: four sites, of which two train in a round.

    python job.py --rounds 8 --history history.csv

Needs `pip install 'fedpace[nvflare]'`.
"""

import argparse
import tempfile
from pathlib import Path

from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

from fedpace.nvflare import AdaptiveSampling

HERE = Path(__file__).parent


def main() -> None:
    """Make the job, and run it here."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--scheme", default="pace")
    parser.add_argument("--history", type=Path, default=Path("history.csv"))
    options = parser.parse_args()
    job = FedJob(name="fedpace")
    job.to_server(
        AdaptiveSampling(
            k=2,
            num_rounds=options.rounds,
            scheme=options.scheme,
            min_clients=options.sites,
            deadline=120,
            history=str(options.history.absolute()),
        )
    )
    job.to_server(NPModelPersistor(model=[0.0] * 5), id="persistor")
    runner = ScriptRunner(script=str(HERE / "client.py"), framework=FrameworkType.NUMPY)
    job.to_clients(runner)
    with tempfile.TemporaryDirectory() as folder:
        job.simulator_run(folder, n_clients=options.sites)


if __name__ == "__main__":
    main()
