"""Options of a run: where a study runs and where it writes."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

WANDB = "wandb:"  # begins the address of a project of Weights & Biases
Progress = Literal["auto", "live", "plain", "none"]
PROGRESS: tuple[str, ...] = get_args(Progress)
MOST_SEATS = 1024


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run: where a study runs and where it writes.

    Attributes:
        storage: folder for ``mlflow.db``, ``artifacts/``, ``studies/`` and ``cache/``.
        tracking_uri: address of MLflow, or ``wandb:PROJECT``; None means SQLite in ``storage``.
        address: address of a Ray cluster; None means this machine.
        seats: trials in a pack; None means 4 on a CPU and a short measurement on a GPU.
        wait: seconds to wait for a cluster's first node that trials can run on.
        quiet: whether to print no description of the text, because a program reads the results.
        progress: how progress is shown: ``live``, ``plain`` (a line a minute), ``none``, or
            ``auto``: live in a terminal or a notebook, plain elsewhere.
        time_limit: seconds after which the run ends with a verdict from the searches that fit; None
            for no limit.
        max_failures: number of failed trials above which the run stops; None for no limit.
    """

    storage: Path = Path("mlruns")
    tracking_uri: str | None = None
    address: str | None = None
    seats: int | None = None
    wait: float = 5
    quiet: bool = False
    progress: Progress = "auto"
    time_limit: float | None = None
    max_failures: int | None = None

    def study_folder(self, name: str) -> Path:
        """Return the folder of a study in the storage."""
        return self.storage / "studies" / name

    @property
    def uri(self) -> str:
        """Address of MLflow."""
        return self.tracking_uri or default_uri(self.storage)


def default_uri(storage: Path) -> str:
    """Return MLflow's default address: SQLite in the storage folder."""
    path = os.path.join(os.path.realpath(storage), "mlflow.db")
    if not re.search(r"%[0-9a-fA-F]{2}|\?", path):
        return f"sqlite:///{path}"
    from sqlalchemy.engine import URL  # slow to import

    # With the driver's name in it, MLflow does not create a folder with the escaped name.
    return URL.create("sqlite+pysqlite", database=path).render_as_string()
