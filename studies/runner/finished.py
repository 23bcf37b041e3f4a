"""A finished study that running it again would not change, so that its results can be shown.

A run that ends well leaves a mark: a checksum over everything that the next run would depend on.
While it matches, that run has nothing to do. A full check loads the text, the base and MLflow,
which takes ten seconds.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import Timeout

from hylorada import InputError
from hylorada.runtime.atomic_files import replace_file
from studies.files.folder_files import require_database, stored_study, study_lock
from studies.process.options import MOST_SEATS, Options
from studies.process.phases import phase
from studies.process.provenance import code_digest, package_versions
from studies.spec.changes import is_same
from studies.spec.study import Study

if TYPE_CHECKING:
    from studies.analysis.results import Results

_MARK = "finished"
_PUBLISHED = ("results.json", "report.html", "study.json")


def finished_results(study: Study, options: Options) -> "Results | None":
    """Return the stored results of a study if a run would only compute them again, else None.

    Only a run on this machine whose runs are in the storage folder's own database qualifies.

    Args:
        study: the requested study.
        options: where it would run.
    """
    folder = options.study_folder(study.name)
    seats = options.seats is None or 1 <= options.seats <= MOST_SEATS
    if not seats or options.address is not None or options.tracking_uri is not None:
        return None
    try:
        return _unchanged_results(folder, study, options)
    # A full run reports what is wrong. A name with a null byte raises ValueError.
    except (OSError, ValueError, InputError):
        return None


def _unchanged_results(folder: Path, study: Study, options: Options) -> "Results | None":
    if not (folder / _MARK).exists() or not is_same(stored_study(folder / "study.json"), study):
        return None
    from studies.analysis.results import read_results  # slow to import
    from studies.tracking.stored_runs import holds_finished
    from studies.trials.by_hand.requests import waiting_lines
    from studies.trials.records import OPEN, read_id

    if waiting_lines(folder):  # requests that came too late for the last run
        return None
    if (folder / OPEN).exists() or (folder / _MARK).read_text() != _state(folder, study):
        return None
    require_database(options.storage / "mlflow.db")
    study_id = read_id(folder)
    if study_id is None or not holds_finished(
        options.storage, study.name, study_id, _states(folder), _PUBLISHED
    ):
        return None
    return read_results(folder / "results.json")


def _states(folder: Path) -> dict[str, str]:
    """Return the state of each trial by name; the files are those that the last run has checked."""
    from studies.trials.loading import trial_ends

    return {name: end.state for name, end in trial_ends(folder).items()}


@phase("mark of the finished study")
def mark_finished(study: Study, options: Options) -> None:
    """Mark a study that has just been run to its end, if its storage permits.

    The lock keeps the folder from changing meanwhile.

    Args:
        study: the study as it was requested.
        options: where it ran.
    """
    folder = options.study_folder(study.name)
    with suppress(OSError, InputError, Timeout), study_lock(folder):
        if is_same(stored_study(folder / "study.json"), study):
            replace_file(folder / _MARK, _state(folder, study).encode())


def _state(folder: Path, study: Study) -> str:
    """Return a checksum of the study folder, of base and text on this disk, and of the code."""
    from studies.trials.messages import CHECKPOINT
    from studies.trials.records import OPEN

    state = hashlib.sha256(f"{code_digest()} {package_versions()}".encode())
    for name in (study.model, study.data):
        for path in _files(os.path.expanduser(name)):
            stat = os.stat(path)
            state.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    # A checkpoint may be large; a run that has ended doesn't need its own.
    ignored = {_MARK, OPEN, "lock", CHECKPOINT}
    for path in _files(str(folder)):
        if os.path.basename(path) not in ignored:
            content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            state.update(f"{path[len(str(folder)) :]} {content}\n".encode())
    return state.hexdigest()


def _files(path: str) -> Iterator[str]:
    """Yield a file, or all files in a folder, in order; nothing for a path that does not exist."""
    if os.path.isfile(path):
        yield path
    elif os.path.isdir(path):
        yield from _inside(path)


def _inside(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _inside(entry.path)
        elif entry.is_file():
            yield entry.path
