"""Files of MLflow's runs."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.uri import add_databricks_profile_info_to_artifact_uri


def upload(uri: str, artifacts: str, path: Path, folder: str = "") -> None:
    """Add a file to a run's artifacts.

    `MlflowClient.log_artifact` is not used: it would cache a thread pool for each of up to 1,024
    runs, and the former location of a run whose artifacts have moved.

    Args:
        uri: Address of the tracking store.
        artifacts: Location of the run's artifacts.
        path: The file.
        folder: Its folder among the artifacts.
    """
    place = add_databricks_profile_info_to_artifact_uri(artifacts, uri)  # type: ignore[no-untyped-call]
    repository: Any = get_artifact_repository(place, tracking_uri=uri)
    repository.log_artifact(str(path), folder or None)


def upload_content(uri: str, artifacts: str, name: str, content: bytes) -> None:
    """Add a file of this content to a run's artifacts; its name may begin with a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / Path(name).name
        path.write_bytes(content)
        upload(uri, artifacts, path, name.rpartition("/")[0])


def upload_json(uri: str, artifacts: str, name: str, values: Mapping[str, Any]) -> None:
    """Add values to a run's artifacts as JSON."""
    upload_content(uri, artifacts, name, json.dumps(values, indent=1, default=str).encode())
