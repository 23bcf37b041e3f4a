"""A study between its inputs and its results: its stages, and what is told of them."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from filelock import FileLock
from rich.console import Console

from hylorada import InputError
from studies.analysis.results import Results, gather, read_results, write_results
from studies.files.folder_files import read_json, write_atomically, write_json
from studies.files.paths import database_path
from studies.process.errors import StudyStopped
from studies.process.options import Options
from studies.process.signals import on_end, restore
from studies.reporting.html_report import write_html
from studies.reporting.live_panel import Panel
from studies.reporting.terminal import say
from studies.search.devices import Devices
from studies.spec.study import Study
from studies.tracking.background_tracker import BackgroundTracker
from studies.tracking.services import open_tracker
from studies.trials.explanations import EXPLAIN_FILE
from studies.trials.messages import Job
from studies.trials.records import OPEN, Record
from studies.trials.store import Store

_BASE = "base"  # owner of the checksum of base.json
Found = TypeVar("Found")


@dataclass(frozen=True)
class Opened:
    """A study that is open in this process.

    Attributes:
        devices: what it trains on.
        store: its folder.
        tracker: its MLflow runs.
        console: for progress.
        check: raises where the process has been asked to end.
    """

    devices: Devices
    store: Store
    tracker: BackgroundTracker
    console: Console
    check: Callable[[], None]


class Interrupted(KeyboardInterrupt):
    """The process was asked to end (Ctrl-C, SIGTERM, its terminal closed)."""


@contextmanager
def _ending_on_signals() -> Iterator[Callable[[], None]]:
    """Within it what asks to end raises :class:`Interrupted`.

    Yields:
        A check that raises it again: an exception that comes up in some library's callback may be swallowed there.
    """
    asked = []
    pool = logging.getLogger("sqlalchemy.pool")
    level = pool.level

    def end(_: int) -> None:
        asked.append(True)
        pool.setLevel(
            logging.CRITICAL
        )  # it logs a traceback when the connection of an interrupted query is reset
        raise Interrupted

    def check() -> None:
        if asked:
            raise Interrupted

    before = on_end(end)
    try:
        yield check
    finally:
        restore(before)
        pool.setLevel(level)


def carry_out(
    devices: Devices,
    store: Store,
    options: Options,
    console: Console,
    work: Callable[[Opened], Found],
) -> Found:
    """Do the work with the parent and all children closed truthfully at the end, whatever it is."""
    name = store.study.name
    write_atomically(store.folder / OPEN, "")
    with _one_at_a_time(options):
        told = partial(say, console)
        tracker = open_tracker(
            options.uri, name, storage=options.storage, study_id=store.id, say=told
        )
    try:
        tracker.describe(devices.provenance, _parent_params(store.study))
        with _ending_on_signals() as check:
            found = work(Opened(devices, store, tracker, console, check))
    except (
        KeyboardInterrupt,
        SystemExit,
    ) as error:  # Ray turns SIGTERM into SystemExit where a cluster is joined
        _break_off(devices, store, tracker, "KILLED")
        raise Interrupted from error
    except Exception:
        _break_off(devices, store, tracker, "FAILED")
        raise
    (store.folder / OPEN).unlink(missing_ok=True)
    return found


def _one_at_a_time(options: Options) -> AbstractContextManager[Any]:
    """Let one process make MLflow's tables: two that begin at once on a new database get in each other's way."""
    if database_path(options.uri) is None or not options.storage.is_dir():
        return nullcontext()
    return FileLock(
        options.storage / "mlflow.db.lock"
    )  # nothing is written outside the storage folder


def _break_off(devices: Devices, store: Store, tracker: BackgroundTracker, status: str) -> None:
    """End the devices and close the MLflow runs; the second also when the first is broken off by another Ctrl-C."""
    try:
        devices.close()
    finally:
        tracker.abort(list(store.records.values()), status)


def _parent_params(study: Study) -> dict[str, Any]:
    plain = {
        k: v for k, v in study.to_dict().items() if k not in ("arms", "comparisons", "defaults")
    }
    return {
        **plain,
        **{f"defaults.{k}": v for k, v in study.defaults.items()},
        "rungs": list(study.rungs()),
    }


def find_results(opened: Opened) -> Results:
    """Run all stages and write the study's results."""
    from studies.search.campaign import find_winners  # imports Ray, which reads the environment

    devices, store = opened.devices, opened.store
    base = run_stages(opened)
    missing, documents = list(find_winners(store).missing), devices.material.test_documents
    results = gather(store, base, devices.provenance, missing, results_so_far(store), documents)
    publish(results, store, opened.tracker)
    return results


def run_stages(opened: Opened, explain: Sequence[Record] = ()) -> Mapping[str, Any]:
    """Train all that the study still lacks.

    Args:
        opened: the study.
        explain: the records of runs that are to explain a winner.

    Returns:
        The base's own test figures.
    """
    from studies.search.campaign import Campaign
    from studies.search.ledger import Ledger

    devices, store, study = opened.devices, opened.store, opened.store.study
    with ExitStack() as stack:
        panel = stack.enter_context(Panel(store, opened.console))
        ledger = Ledger(store, opened.tracker, panel)
        campaign = Campaign(ledger, explain)
        if campaign.searches:
            times = f"{study.searches} searches of " if study.searches > 1 else ""
            panel.say(
                f"{study.name}: {times}{study.trials} trial{'s' * (study.trials > 1)} for each of "
                f"{', '.join(study.arms)}; {_rungs(study)}"
            )
            devices.cluster.probe(
                [_probe_job(study, arm, p) for arm in study.arms for p in study.firsts(arm)]
            )
            panel.begin(
                "search",
                sum(store.planned(a, s) for s in range(study.searches) for a in study.arms),
            )
        while count := campaign.remaining():
            devices.cluster.run(campaign, opened.check)
            campaign = Campaign(
                ledger, explain
            )  # Tune may end with trials that it could not start again
            if campaign.remaining() >= count:
                raise StudyStopped(
                    f"Ray Tune has ended with {campaign.remaining()} trials left to do"
                )
        return _base(store, devices)


def results_so_far(store: Store) -> Results | None:
    path = store.folder / "results.json"
    return read_results(path) if path.exists() else None


def _probe_job(study: Study, arm: str, point: Mapping[str, Any]) -> Job:
    """A point of an arm, to be tried out."""
    adapter, training = study.configs(arm, point)
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
        found: Mapping[str, Any] = read_json(path, Mapping[str, float], _BASE)
        if "ppl" in found:
            return found
    measured: Mapping[str, Any] = devices.cluster.evaluate_base("test")
    write_json(path, measured, _BASE)
    return measured


def publish(results: Results, store: Store, tracker: BackgroundTracker) -> None:
    """Write results and report, and give MLflow what belongs to the whole study."""
    write_results(store.folder / "results.json", results)
    write_html(results, store.records, store.study, store.folder / "report.html")
    figures = {f"test/ppl_{a.arm}": a.ppl for a in results.arms}
    for c in results.comparisons:
        for end, value in (
            ("percent", c.change),
            ("low", c.low),
            ("high", c.high),
            ("p_holm", c.p_holm),
        ):
            figures[f"test/change_{c.arm}_vs_{c.reference}_{end}"] = value
    files = {
        store.folder / name: ""
        for name in ("results.json", "report.html", "study.json", EXPLAIN_FILE)
    }
    records = list(store.records.values())
    for record in records:
        if record.stage == "confirm":
            files[store.trial_folder(record.name) / "test_block_nll.npy"] = (
                f"block_nll/{record.name}"
            )
    tracker.finish(records, files, figures)
