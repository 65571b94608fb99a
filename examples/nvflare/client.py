"""What a site does: nothing of fedpace, only NVFlare's Client API."""

import time

import numpy as np
import nvflare.client as flare

FEATURES = 5


def samples(site: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what a site holds: the first holds least."""
    rng = np.random.default_rng(site)
    x = rng.normal(size=(40 * site, FEATURES))
    return x, (x[:, 0] - 2 * x[:, 1] > 0).astype(float)


def main() -> None:
    """Train the model as often as it comes."""
    flare.init()
    site = int(flare.get_site_name().rpartition("-")[2])
    x, y = samples(site)
    while flare.is_running():
        model = flare.receive()
        if model is None:
            break
        weights = model.params["numpy_key"]
        chances = 1 / (1 + np.exp(-x @ weights))
        loss = -np.log(np.where(y == 1, chances, 1 - chances) + 1e-12).mean()
        for _ in range(10):
            chances = 1 / (1 + np.exp(-x @ weights))
            weights = weights - 0.5 * x.T @ (chances - y) / len(y)
        time.sleep(0.2 * site)  # the last is the slowest
        flare.send(
            flare.FLModel(
                params={"numpy_key": weights},
                metrics={"loss": float(loss)},  # of the model that came
                meta={"NUM_STEPS_CURRENT_ROUND": len(y)},  # what counts as its samples
            )
        )


if __name__ == "__main__":
    main()
