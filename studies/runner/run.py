"""A study from its start to its end: prepare, search and confirm, report."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from hylorada import InputError
from hylorada.base_models.builtin_names import SMOLLM2, TEXTS, TINY
from studies.engine.limits import check_limits
from studies.files.folder_files import (
    require_database,
    require_kinds,
    require_not_run,
    stored_study,
)
from studies.files.paths import broken_link
from studies.process.environment import make_private, short_folder, short_root, study_environment
from studies.process.errors import StudyStopped, as_stop
from studies.process.options import Options
from studies.process.phases import phase
from studies.reporting.terminal import say
from studies.runner.finished import finished_results, mark_finished
from studies.search.devices import Devices
from studies.spec.study import Study

if TYPE_CHECKING:
    from studies.analysis.results import Results
    from studies.runner.inputs import Material
    from studies.search.explain import Request
    from studies.search.ledger import Callbacks
    from studies.search.open_study import OpenStudy
    from studies.trials.explanations import Explanation
    from studies.trials.store import Store


@phase("other steps of the run")
def run_study(
    study: Study, options: Options, console: Console, callbacks: "Callbacks | None" = None
) -> "Results":
    """Search, confirm and report a study; resume one that was interrupted.

    The results of a finished study that has not changed are read from its folder.

    In a program that has called ``ray.init()``, the study runs on that Ray as on a cluster and
    leaves it running.

    Args:
        study: checked study.
        options: where to run.
        console: console for the live panel and a few lines.
        callbacks: functions of the calling program; None for none.

    Returns:
        The results, which are also in the study folder as ``results.json`` and ``report.html``.

    Raises:
        InputError: bad input, before anything is written; or a problem in the probe (see
            :func:`hylorada.probe`), which leaves a study without trials.
        StudyStopped: storage, processes or machines keep the study from continuing; its state is
            saved.
        KeyboardInterrupt: the user or the system has ended the process; the state is saved.
    """
    if (stored := finished_results(study, options)) is not None:
        return stored
    with _prepare(study, options, console, callbacks=callbacks) as opened:
        from studies.search.stages import report, search_and_confirm

        base = search_and_confirm(opened)
        results = report(opened, base)
    mark_finished(study, options)
    return results


def explain_study(
    study: Study, options: Options, console: Console, request: "Request"
) -> "Explanation":
    """Explain a winner of a finished study by training configurations around it, or resume that.

    Args:
        study: the study as it was run.
        options: where to run.
        console: console for the live panel and a few lines.
        request: which winner to explain.

    Returns:
        The explanation, which is also in the study folder as ``explain.json`` and in
        ``report.html``.

    Raises:
        InputError: bad input, or too few padded rows, before anything is trained.
        StudyStopped: storage, processes or machines keep the command from continuing; its state is
            saved.
        KeyboardInterrupt: the user or the system has ended the process; the state is saved.
    """

    def check(material: "Material") -> None:
        from studies.search.explain import make_plan, refuse_seen_rows
        from studies.trials.loading import load_records

        records = load_records(options.study_folder(study.name))
        refuse_seen_rows(make_plan(study, records, request).winner, material.unseen)

    with _prepare(study, options, console, trains=True, check=check) as opened:
        from studies.search.explain import explain_winner

        explanation = explain_winner(opened, request)
    mark_finished(study, options)
    return explanation


def check_inputs(study: Study, options: Options) -> "Material":
    """Check what a run of the study would check before any compute, and run nothing.

    Args:
        study: checked study.
        options: where it would run.

    Returns:
        The inputs.

    Raises:
        InputError: there are problems; all are listed.
    """
    with _faults_as_stops(), study_environment():
        _check_storage(options)
        from studies.runner.inputs import prepare

        return prepare(study, options)


@contextmanager
def _prepare(
    study: Study,
    options: Options,
    console: Console,
    *,
    trains: bool = False,
    check: "Callable[[Material], None] | None" = None,
    callbacks: "Callbacks | None" = None,
) -> Iterator["OpenStudy"]:
    """Check and prepare all inputs, and keep the study open inside this context.

    Args:
        study: checked study.
        options: where to run.
        console: console for notes and progress.
        trains: whether there is something to train even if the study has results.
        check: raises for inputs that what is trained can't use, before the study is opened.
        callbacks: functions of the calling program; None for none.
    """
    began = time.monotonic()
    with _faults_as_stops(), ExitStack() as stack:
        stack.enter_context(study_environment())
        require_not_run(options.study_folder(study.name), study.name)
        trains = trains or not _has_results(study, options) or _has_additions(study, options)
        options = _on_their_ray(options)
        devices = _open_devices(stack, study, options, trains=trains)
        # These imports take seconds, in which Ray starts.
        with phase("other imports of the driver"):
            from studies.runner.inputs import prepare
            from studies.search.ledger import NO_CALLBACKS
            from studies.search.open_study import recorded
            from studies.search.stages import results_so_far

        material = prepare(study, options, devices.join if options.address else None)
        if check is not None:
            check(material)
        store = _open_store(stack, study, options, material, console)
        if results_so_far(store) is None:
            # From here on a host loads the base, while MLflow creates its tables.
            devices.cluster(material.blocks)
        callbacks = callbacks or NO_CALLBACKS
        yield stack.enter_context(
            recorded(material, devices, store, options, console, callbacks, began)
        )


@contextmanager
def _faults_as_stops() -> Iterator[None]:
    """Turn faults of storage inside this context into `StudyStopped`."""
    try:
        yield
    except (InputError, StudyStopped):
        raise
    except Exception as error:
        if stop := as_stop(error):
            raise stop from error
        raise


def _open_devices(stack: ExitStack, study: Study, options: Options, *, trains: bool) -> Devices:
    """Check machine and storage, and start a private Ray early if the inputs surely exist."""
    if options.address is None and trains:
        check_limits(short_root())
    workspace = short_folder()
    stack.callback(shutil.rmtree, workspace, ignore_errors=True)
    _check_storage(options)
    devices = Devices(study, options, workspace)
    stack.callback(devices.close)
    if options.address is None:
        make_private(workspace)
        # An early start lets the host import beside this process. Inputs that may be misspelt are
        # checked first.
        if (
            "transformers" not in sys.modules
            and _is_evident(study)
            and not _has_results(study, options)
        ):
            devices.start()
    return devices


@phase("study folder")
def _open_store(
    stack: ExitStack, study: Study, options: Options, material: "Material", console: Console
) -> "Store":
    """Print all notes on the inputs, and open the study's folder."""
    from studies.files.own_designs import source_digests
    from studies.spec.points import notes

    study = material.settled(study)
    text_notes = () if options.quiet else material.text_notes
    codes = [
        f"the study runs {f} (source {sha})" for f, sha in source_digests(study.designs).items()
    ]
    for line in (*text_notes, *(f"note: {note}" for note in (*codes, *notes(study)))):
        say(console, f"hylorada: {line}")
    store = _store_of(study, options)
    stack.callback(store.close)
    for note in store.notes:
        say(console, f"hylorada: note: {note}")
    store.bind_inputs(material.inputs())
    return store


def _store_of(study: Study, options: Options) -> "Store":
    """Open the folder of a study, which begins small if its time is limited."""
    from studies.trials.store import Store

    folder = options.study_folder(study.name)
    if options.time_limit is None:
        return Store(folder, study)
    from studies.search.time_limit import begun
    from studies.trials.records import read_records

    before = None
    if (folder / "study.json").exists():
        stored = stored_study(folder / "study.json")
        before = replace(study, trials=stored["trials"], searches=stored["searches"])
    return Store(folder, begun(study, before, read_records(folder)), study)


def _on_their_ray(options: Options) -> Options:
    """Return options with the calling program's Ray as the cluster, if it has started one."""
    if "ray" not in sys.modules:  # importing it takes seconds
        return options
    import ray
    from ray.util.client import ray as client

    if not ray.is_initialized():
        return options
    if options.address is not None:
        raise InputError(
            f"address {options.address!r}: this program has called ray.init() already; "
            "leave the address out to run there, or call ray.shutdown() first"
        )
    if client.is_connected():
        raise InputError(
            "this program uses Ray Client, which is not supported; run it on a node of the cluster"
        )
    return replace(options, address=ray.get_runtime_context().gcs_address)


def _is_evident(study: Study) -> bool:
    """Return whether base and text surely exist; other names are checked before Ray starts."""
    base, text = (os.path.expanduser(name) for name in (study.model, study.data))
    return (base in (TINY, SMOLLM2) or os.path.isdir(base)) and (
        text in TEXTS or os.path.exists(text)
    )


def _has_results(study: Study, options: Options) -> bool:
    """Return whether the study has results, so that nothing may be left to train.

    The path is not checked yet, and `os.path` accepts any.
    """
    return os.path.exists(options.study_folder(study.name) / "results.json")


def _has_additions(study: Study, options: Options) -> bool:
    """Return whether users have added trials that have not been trained."""
    from studies.trials.by_hand.requests import additions  # slow to import

    return bool(additions(options.study_folder(study.name)))


def _check_storage(options: Options) -> None:
    """Raise if the storage is behind a dangling link, or a path in it is of the wrong kind.

    Raises:
        InputError: the storage can't be used.
    """
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
