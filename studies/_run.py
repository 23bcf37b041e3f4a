"""One study from its checks to its verdict."""

import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from hylorada import InputError

from ._devices import Devices
from ._environment import make_private, short_folder
from ._faults import StudyStopped, as_stop
from ._files import read_json, require_database, require_kinds, write_atomically
from ._inputs import Options, prepare
from ._job import Job
from ._panel import Panel
from ._points import notes
from ._records import OPEN, read_id
from ._report import write_html
from ._results import Results, gather, read_results
from ._store import Store
from ._study import Study
from ._tracking import Tracker


class Interrupted(KeyboardInterrupt):
    """The process was asked to end (Ctrl-C or SIGTERM)."""


@contextmanager
def _ending_on_signals() -> Iterator[Callable[[], None]]:
    """Within it SIGINT and SIGTERM raise :class:`Interrupted`.

    Yields:
        A check that raises it again: an exception that comes up in some library's callback may be swallowed there.
    """
    asked = []
    pool = logging.getLogger("sqlalchemy.pool")
    level = pool.level

    def end(*_: object) -> None:
        asked.append(True)
        pool.setLevel(logging.CRITICAL)  # it logs a traceback when the connection of an interrupted query is reset
        raise Interrupted

    def check() -> None:
        if asked:
            raise Interrupted

    before = {s: signal.signal(s, end) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        pool.setLevel(level)


def run_study(study: Study, options: Options, console: Console) -> Results:
    """Search, confirm, report; a study that was broken off goes on where it was.

    Args:
        study: checked.
        options: where to run.
        console: for the live panel and a few lines.

    Returns:
        The results, which also lie in the study folder as ``results.json`` and ``report.html``.

    Raises:
        InputError: bad input, before anything is written; or what the probe found (see :func:`hylorada.probe`), which
            leaves a study without trials.
        StudyStopped: storage, processes or machines don't let it go on; the state is saved.
        KeyboardInterrupt: the same, on the user's wish.
    """
    try:
        return _run_whole(study, options, console)
    except (InputError, StudyStopped):
        raise
    except Exception as error:
        if stop := as_stop(error):
            raise stop from error
        raise


def _run_whole(study: Study, options: Options, console: Console) -> Results:
    with ExitStack() as stack:
        workspace = short_folder()
        stack.callback(shutil.rmtree, workspace, ignore_errors=True)
        _check_storage(options)
        devices = Devices(study, options, workspace)
        stack.callback(devices.close)
        if options.address is None:
            make_private(workspace)
        material = devices.material = prepare(study, options, devices.join if options.address else None)
        for note in notes(study):
            console.print(f"hylorada: note: {note}", highlight=False, markup=False, soft_wrap=True)
        store = Store(options.study_folder(study.name), study)
        stack.callback(store.close)
        store.bind_inputs(material.inputs())
        if _results_so_far(store) is None:
            devices.start()  # its host loads the base while MLflow makes its tables
        return _tracked(devices, store, options, console)


def _check_storage(options: Options) -> None:
    """Raise for what stands in the place of the storage's own files and folders."""
    database = options.storage / "mlflow.db"
    require_kinds(files=[database], folders=[options.storage / name for name in ("cache", "artifacts", "studies")])
    if options.tracking_uri is None and os.path.isfile(database) and database.stat().st_size:
        require_database(database)


def _tracked(devices: Devices, store: Store, options: Options, console: Console) -> Results:
    """Run with the parent and all children closed truthfully at the end, whatever it is."""
    name = store.study.name
    artifacts = None if options.uri.startswith("http") else options.storage / "artifacts" / name
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    write_atomically(store.folder / OPEN, "")
    tracker = Tracker(options.uri, name, artifacts=artifacts, study_id=study_id(store.folder), say=say)
    try:
        tracker.describe(devices.provenance, _parent_params(store.study))
        with _ending_on_signals() as check:
            results = _run(devices, store, tracker, console, check)
    except (KeyboardInterrupt, SystemExit) as error:  # Ray turns SIGTERM into SystemExit
        devices.close()
        tracker.abort(list(store.records.values()), "KILLED")
        raise Interrupted from error
    except Exception:
        devices.close()
        tracker.abort(list(store.records.values()), "FAILED")
        raise
    (store.folder / OPEN).unlink(missing_ok=True)
    return results


def study_id(folder: Path) -> str:
    """The id of a study folder, made at its first run; it ties the folder to its MLflow run."""
    if (found := read_id(folder)) is None:
        found = os.urandom(8).hex()
        write_atomically(folder / "id", found)
    return found


def _parent_params(study: Study) -> dict[str, Any]:
    plain = {k: v for k, v in study.to_dict().items() if k not in ("arms", "comparisons", "defaults")}
    return {**plain, **{f"defaults.{k}": v for k, v in study.defaults.items()}, "rungs": list(study.rungs())}


def _run(devices: Devices, store: Store, tracker: Tracker, console: Console, check: Callable[[], None]) -> Results:
    from ._campaign import Campaign, Ledger, winners  # imports Ray, which reads the environment

    study = store.study
    with ExitStack() as stack:
        panel = stack.enter_context(Panel(store, console))
        ledger = Ledger(store, tracker, panel)
        campaign = Campaign(ledger)
        if campaign.searches:
            panel.say(f"{study.name}: {study.trials} trials for each of {', '.join(study.arms)}; {_rungs(study)}")
            devices.cluster.probe([_first_job(study, arm) for arm in study.arms])
            panel.begin("search", sum(map(store.planned, study.arms)))
        while count := campaign.remaining():
            devices.cluster.run(campaign, check)
            campaign = Campaign(ledger)  # Tune may end with trials that it could not start again
            if campaign.remaining() >= count:
                raise StudyStopped(f"Ray Tune has ended with {campaign.remaining()} trials left to do")
        best = winners(store)
        base = _base(store, devices)
    results = gather(store, base, devices.provenance, list(best.missing), _results_so_far(store))
    _write(results, store, tracker)
    return results


def _results_so_far(store: Store) -> Results | None:
    path = store.folder / "results.json"
    return read_results(path) if path.exists() else None


def _first_job(study: Study, arm: str) -> Job:
    """An arm's first point, to be tried out."""
    adapter, training = study.configs(arm, study.start(arm))
    return Job(
        name=f"probe {arm}",
        adapter=adapter.to_dict(),
        training=training.to_dict(),
        seed=study.seed,
        data_seed=study.seed,
        report_steps=(),
        folder="",
    )


def _rungs(study: Study) -> str:
    steps = [*study.rungs(), study.max_steps]
    return "rungs " + " -> ".join(map(str, steps)) + " steps"


def _base(store: Store, devices: Devices) -> Mapping[str, Any]:
    """The base's own test figures, measured once; what is lost or damaged since is measured again."""
    path = store.folder / "base.json"
    with suppress(InputError):
        found: Mapping[str, Any] = read_json(path, Mapping[str, float])
        if "ppl" in found:
            return found
    measured: Mapping[str, Any] = devices.cluster.evaluate_base("test")
    write_atomically(path, json.dumps(measured))
    return measured


def _write(results: Results, store: Store, tracker: Tracker) -> None:
    write_atomically(store.folder / "results.json", json.dumps(results.to_dict(), indent=1))
    write_html(results, store.records, store.study, store.folder / "report.html")
    figures = {f"test/ppl_{a.arm}": a.ppl for a in results.arms}
    for c in results.comparisons:
        figures[f"test/change_{c.arm}_vs_{c.reference}_percent"] = c.change
    files = {store.folder / name: "" for name in ("results.json", "report.html", "study.json")}
    records = list(store.records.values())
    for record in records:
        if record.stage == "confirm":
            files[store.trial_folder(record.name) / "test_block_nll.npy"] = f"block_nll/{record.name}"
    tracker.finish(records, files, figures)
