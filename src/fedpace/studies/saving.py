"""Trained models as files."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from fedpace.files import made_folder, write_through
from fedpace.studies.experiment import simulator
from fedpace.studies.processes import Job
from fedpace.studies.store import Store, run_key
from fedpace.studies.study import Study

FOLDER = "models"


def write_models(study: Study, jobs: Sequence[Job], out: Path) -> list[Path]:
    """Write what each stored run has trained to OUT/models, an .npz file per run.

    A PyTorch module's arrays have the names of its `state_dict`, scikit-learn's are coef_ and
    intercept_; other models have one vector, "parameters".
    """
    store, written = Store(out), []
    model = simulator(study, jobs[0].seed).model
    named = getattr(model, "arrays", lambda parameters: {"parameters": parameters})
    for job in jobs:
        path = store.find(run_key(study, *job))
        run = None if path is None else store.load(path)
        if run is None or run.parameters is None:
            continue
        buffer = BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **named(run.parameters))
        scheme = job.scheme.replace("/", "-").replace(":", "-")
        target = made_folder(out / FOLDER, "--out") / f"{scheme}-seed{job.seed}.npz"
        write_through(target, buffer.getvalue(), temporary=target.with_suffix(".part"))
        written.append(target)
    return written
