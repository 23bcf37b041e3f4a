"""Where a study runs and what it writes to."""

import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Options:
    """Where a study runs and what it writes to.

    Attributes:
        storage: folder for ``mlflow.db``, ``artifacts/``, ``studies/`` and ``cache/``.
        tracking_uri: of MLflow; None is SQLite in ``storage``.
        address: of a Ray cluster; None is this machine.
        seats: trials in a pack; None is 4 on a CPU, and measured on a GPU.
        wait: seconds to wait for a cluster's first node that trials can run on.
        quiet: whether not to describe the text that was read, for its results are read by a program.
    """

    storage: Path
    tracking_uri: str | None = None
    address: str | None = None
    seats: int | None = None
    wait: float = 5
    quiet: bool = False

    def study_folder(self, name: str) -> Path:
        return self.storage / "studies" / name

    @property
    def uri(self) -> str:
        return self.tracking_uri or default_uri(self.storage)


def default_uri(storage: Path) -> str:
    """Return MLflow's address: SQLite in the storage folder."""
    path = os.path.join(os.path.realpath(storage), "mlflow.db")
    if not re.search(r"%[0-9a-fA-F]{2}|\?", path):
        return f"sqlite:///{path}"
    from sqlalchemy.engine import URL  # not above: it takes a while

    # With the driver's name, MLflow does not make a folder of the escaped name.
    return URL.create("sqlite+pysqlite", database=path).render_as_string()
