"""One study from its start to its end, whatever that is."""

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

from hylorada import InputError
from hylorada.base_models.builtin_names import PYDOCS, SMOLLM2, TINY
from studies.engine.limits import check_limits
from studies.files.folder_files import require_database, require_kinds
from studies.files.paths import broken_link
from studies.process.environment import make_private, short_folder, short_root, study_environment
from studies.process.errors import StudyStopped, as_stop
from studies.process.options import Options
from studies.reporting.terminal import say
from studies.search.devices import Devices
from studies.spec.study import Study

if TYPE_CHECKING:
    from studies.analysis.results import Results
    from studies.search.explain import Request
    from studies.search.stages import Opened
    from studies.trials.explanations import Explanation

Found = TypeVar("Found")


def run_study(study: Study, options: Options, console: Console) -> "Results":
    """Search, confirm, report; a study that was broken off goes on where it was.

    Args:
        study: checked.
        options: where to run.
        console: for the live panel and a few lines.

    A program that has called ``ray.init()`` keeps its Ray: the study runs on it as on a cluster, and leaves it running.

    Returns:
        The results, which also lie in the study folder as ``results.json`` and ``report.html``.

    Raises:
        InputError: bad input, before anything is written; or what the probe found (see :func:`hylorada.probe`), which
            leaves a study without trials.
        StudyStopped: storage, processes or machines don't let it go on; the state is saved.
        KeyboardInterrupt: the same, on the user's wish.
    """

    def work(opened: "Opened") -> "Results":
        from studies.search.stages import find_results

        return find_results(opened)

    return _run(study, options, console, work)


def explain_study(
    study: Study, options: Options, console: Console, request: "Request"
) -> "Explanation":
    """Train what explains a winner of a finished study; an interrupted command resumes where it was.

    Args:
        study: as it was run.
        options: where to run.
        console: for the live panel and a few lines.
        request: which winner to explain.

    Returns:
        The explanation, which also lies in the study folder as ``explain.json`` and in ``report.html``.

    Raises:
        InputError: bad input, before anything is trained.
        StudyStopped: storage, processes or machines don't let it go on; the state is saved.
        KeyboardInterrupt: the same, on the user's wish.
    """

    def work(opened: "Opened") -> "Explanation":
        from studies.search.explain import find_explanation

        return find_explanation(opened, request)

    return _run(study, options, console, work, trains=True)


def _run(
    study: Study,
    options: Options,
    console: Console,
    work: "Callable[[Opened], Found]",
    *,
    trains: bool = False,
) -> Found:
    try:
        return _run_whole(study, options, console, work, trains or not _has_results(study, options))
    except (InputError, StudyStopped):
        raise
    except Exception as error:
        if stop := as_stop(error):
            raise stop from error
        raise


def _run_whole(
    study: Study,
    options: Options,
    console: Console,
    work: "Callable[[Opened], Found]",
    trains: bool,
) -> Found:
    with ExitStack() as stack:
        stack.enter_context(study_environment())
        options = _on_their_ray(options)
        if options.address is None and trains:
            check_limits(short_root())
        workspace = short_folder()
        stack.callback(shutil.rmtree, workspace, ignore_errors=True)
        _check_storage(options)
        devices = Devices(study, options, workspace)
        stack.callback(devices.close)
        if options.address is None:
            make_private(workspace)
            if (
                "transformers" not in sys.modules
                and _is_evident(study)
                and not _has_results(study, options)
            ):
                devices.start()  # its host imports beside what follows; else the checks come first
        from studies.runner.inputs import prepare
        from studies.search.stages import carry_out, results_so_far
        from studies.spec.points import notes
        from studies.trials.store import Store

        material = devices.material = prepare(
            study, options, devices.join if options.address else None
        )
        study = material.settled(study)
        for line in (
            *(() if options.quiet else material.text_notes),
            *(f"note: {note}" for note in notes(study)),
        ):
            say(console, f"hylorada: {line}")
        store = Store(options.study_folder(study.name), study)
        stack.callback(store.close)
        for note in store.notes:
            say(console, f"hylorada: note: {note}")
        store.bind_inputs(material.inputs())
        if results_so_far(store) is None:
            devices.wait()  # then its host loads the base while MLflow makes its tables
        return carry_out(devices, store, options, console, work)


def _on_their_ray(options: Options) -> Options:
    """Take the Ray of the calling program, if it has started one, for the cluster."""
    if "ray" not in sys.modules:  # its import takes seconds
        return options
    import ray
    from ray.util.client import ray as client

    if not ray.is_initialized():
        return options
    if options.address is not None:
        raise InputError(
            f"address {options.address!r}: this program has called ray.init() already; leave the address out to run "
            "there, or call ray.shutdown() first"
        )
    if client.is_connected():
        raise InputError(
            "this program uses Ray Client, which is not supported; run it on a node of the cluster"
        )
    return replace(options, address=ray.get_runtime_context().gcs_address)


def _is_evident(study: Study) -> bool:
    """Whether base and text are surely there; what may be mistyped is told before Ray starts."""
    base, text = (os.path.expanduser(name) for name in (study.model, study.data))
    return (base in (TINY, SMOLLM2) or os.path.isdir(base)) and (
        text == PYDOCS or os.path.exists(text)
    )


def _has_results(study: Study, options: Options) -> bool:
    """Whether there may be nothing left to train; any path is taken, for it has not been checked yet."""
    return os.path.exists(options.study_folder(study.name) / "results.json")


def _check_storage(options: Options) -> None:
    """Raise for a storage that leads nowhere, and for what stands in the place of its files and folders."""
    for part in (options.storage, *options.storage.parents):
        if problem := broken_link(part):
            raise InputError(f"storage {str(options.storage)!r} can't be used: {problem}")
    database = options.storage / "mlflow.db"
    require_kinds(
        files=[database],
        folders=[options.storage / name for name in ("cache", "artifacts", "studies")],
    )
    if options.tracking_uri is None and os.path.isfile(database) and database.stat().st_size:
        require_database(database)
