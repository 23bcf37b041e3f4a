"""A study open in this process, whose MLflow runs get its true status however it ends."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from rich.console import Console

from studies.files.folder_files import write_atomically
from studies.files.paths import database_path
from studies.process.errors import Interrupted
from studies.process.options import Options, Progress
from studies.process.signals import on_end, restore
from studies.reporting.terminal import say
from studies.search.devices import Devices
from studies.search.ledger import NO_CALLBACKS, Callbacks
from studies.spec.study import Study
from studies.tracking.background_tracker import BackgroundTracker
from studies.tracking.services import open_tracker
from studies.trials.by_hand.requests import stop_requested
from studies.trials.records import OPEN
from studies.trials.store import Store

if TYPE_CHECKING:
    from studies.engine.cluster import Cluster
    from studies.runner.inputs import Material


@dataclass(frozen=True)
class OpenStudy:
    """A study that is open in this process.

    Attributes:
        material: its checked inputs.
        devices: the devices that it trains on.
        store: its folder.
        tracker: its MLflow runs.
        console: console for progress.
        progress: how progress is shown.
        callbacks: functions of the calling program.
        check: raises `Interrupted` if a signal has ended the process.
        max_failures: number of failed trials above which the study stops; None for no limit.
        ends: time by the monotonic clock at which a time-limited run should end.
    """

    material: "Material"
    devices: Devices
    store: Store
    tracker: BackgroundTracker
    console: Console
    progress: Progress
    callbacks: Callbacks
    check: Callable[[], None]
    max_failures: int | None = None
    ends: float | None = None

    @property
    def cluster(self) -> "Cluster":
        """The cluster with the study's text; started or joined on first use."""
        return self.devices.cluster(self.material.blocks)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of blocks of each split that the study uses."""
        return {split: blocks.num_blocks for split, blocks in self.material.blocks.items()}


@contextmanager
def recorded(
    material: "Material",
    devices: Devices,
    store: Store,
    options: Options,
    console: Console,
    callbacks: Callbacks = NO_CALLBACKS,
    began: float | None = None,
) -> Iterator[OpenStudy]:
    """Open a study's MLflow runs, and close them with their true status at the end of the context.

    On an interruption or an error the devices are closed too. A time limit counts from ``began``,
    by the monotonic clock, or from now.

    Raises:
        Interrupted: a signal has ended the process.
    """
    write_atomically(store.folder / OPEN, "")
    with _one_at_a_time(options):
        tracker = open_tracker(
            options.uri,
            store.study.name,
            storage=options.storage,
            study_id=store.id,
            say=partial(say, console),
        )
    try:
        tracker.describe(material.provenance, _parent_params(store.plan))
        with _interrupted(store.folder, partial(say, console)) as check:
            yield OpenStudy(
                *(material, devices, store, tracker, console, options.progress, callbacks, check),
                max_failures=options.max_failures,
                ends=_end(options, began),
            )
    # On a joined cluster, Ray turns SIGTERM into SystemExit.
    except (KeyboardInterrupt, SystemExit) as error:
        _break_off(devices, store, tracker, "KILLED")
        raise Interrupted from error
    except Exception:
        _break_off(devices, store, tracker, "FAILED")
        raise
    (store.folder / OPEN).unlink(missing_ok=True)


def _end(options: Options, began: float | None) -> float | None:
    if options.time_limit is None:
        return None
    return (time.monotonic() if began is None else began) + options.time_limit


@contextmanager
def _interrupted(folder: Path, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Raise `Interrupted` inside this context on each signal that ends a process.

    Yields:
        A check that raises it again after the first signal: an exception raised in the callback of
        some library may be swallowed there. It also raises it once another terminal has asked the
        study to stop.
    """
    numbers: list[int] = []
    asked = False
    pool = logging.getLogger("sqlalchemy.pool")
    level = pool.level

    def end(number: int) -> None:
        numbers.append(number)
        # SQLAlchemy logs a traceback when it resets the connection of an interrupted query.
        pool.setLevel(logging.CRITICAL)
        raise Interrupted

    def check() -> None:
        nonlocal asked
        if not asked and stop_requested(folder):
            asked = True
            say("hylorada: `hylorada stop` has asked this study to stop")
        if asked or numbers:
            raise Interrupted

    before = on_end(end)
    try:
        yield check
    finally:
        restore(before)
        pool.setLevel(level)


def _one_at_a_time(options: Options) -> AbstractContextManager[Any]:
    """Let only one process create MLflow's tables: two on a new database would disturb each other.

    The lock lies in the storage folder, because nothing is written elsewhere.
    """
    if database_path(options.uri) is None or not options.storage.is_dir():
        return nullcontext()
    return FileLock(options.storage / "mlflow.db.lock")


def _break_off(devices: Devices, store: Store, tracker: BackgroundTracker, status: str) -> None:
    """Close devices and MLflow runs, the latter even if another Ctrl-C interrupts the former."""
    try:
        devices.close()
    finally:
        tracker.abort(list(store.records.values()), status)


def _parent_params(study: Study) -> dict[str, Any]:
    excluded = ("arms", "comparisons", "defaults", "designs", "grid")
    plain = {k: v for k, v in study.to_dict().items() if k not in excluded}
    defaults = {f"defaults.{k}": v for k, v in study.defaults.items()}
    return {**plain, **defaults, "rungs": list(study.rungs())}
