"""The stages of an open study, and the report of its results."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hylorada import InputError
from studies.analysis.results import Results, gather, read_results, write_results
from studies.files.folder_files import read_json, write_json
from studies.process.errors import StudyStopped, TimeUp
from studies.progress.panel import Panel
from studies.reporting.description import describe, figure_files
from studies.reporting.html_report import write_html
from studies.reporting.sections import Section
from studies.search.first_forecast import with_forecast
from studies.search.open_study import OpenStudy
from studies.search.time_limit import TimeLimit, limit_notes
from studies.spec.points import first_points
from studies.spec.study import Study
from studies.tracking.background_tracker import BackgroundTracker
from studies.trials.explanations import EXPLAIN_FILE
from studies.trials.messages import Job
from studies.trials.records import Record, planned_trials
from studies.trials.store import Store
from studies.trials.winners import counting

_BASE = "base"  # owner of the checksum of base.json


def search_and_confirm(opened: OpenStudy, explain: Sequence[Record] = ()) -> Mapping[str, Any]:
    """Train everything that the study still lacks: search, select, confirm.

    The stages are one campaign in one run of Tune, because each run starts new trial processes.

    Args:
        opened: the study.
        explain: the records of runs that explain a winner, trained after the other stages.

    Returns:
        The metrics of the base alone on the test split.

    Raises:
        StudyStopped: a fault outside the trials keeps them from continuing, or the time limit came
            before anything could be compared.
    """
    # Imported here, because Ray reads the environment when it is imported.
    from studies.search.campaign import Campaign
    from studies.search.ledger import Ledger

    with Panel(opened.store, opened.console, opened.progress) as panel:
        limit = _time_limit(opened, panel)
        ledger = Ledger(
            *(opened.store, opened.tracker, panel),
            callbacks=with_forecast(opened, panel.tell, len(explain)),
            max_failures=opened.max_failures,
        )
        campaign = Campaign(ledger, explain, limit)

        def attend() -> None:
            opened.check()
            if limit is not None:
                limit.check()
            panel.update()

        def receive() -> bool:
            attend()
            return campaign.receive()

        try:
            if campaign.is_searching:
                _begin_search(opened, panel, attend)
            while campaign.remaining():
                ledger.check_failures()
                ended = _ended(opened.store)
                opened.cluster.run(campaign, receive)
                # Tune may end with trials that it could not start again; a new campaign has them,
                # and those that users have added since.
                campaign = Campaign(ledger, explain, limit)
                if campaign.remaining() and _ended(opened.store) == ended:
                    raise StudyStopped(
                        f"Ray Tune has ended with {campaign.remaining()} trials left to do"
                    )
        except TimeUp:
            _require_pairs(opened.store)
        return base_metrics(opened.store.folder, lambda: opened.cluster.evaluate_base("test"))


def _ended(store: Store) -> int:
    return sum(r.state != "running" for r in store.records.values())


def _time_limit(opened: OpenStudy, panel: Panel) -> TimeLimit | None:
    if opened.ends is None:
        return None
    return TimeLimit(
        opened.ends, opened.store, opened.sizes, lambda: opened.cluster.place, panel.say
    )


def _require_pairs(store: Store) -> None:
    """Raise if no two arms have a finished confirm run each, so that there is nothing to report.

    Raises:
        StudyStopped: There is nothing to compare.
    """
    runs = [r for r in counting(store.study, store.records, "confirm") if r.state == "complete"]
    if len({r.arm for r in runs if r.factor == 1}) < min(2, len(store.study.arms)):
        raise StudyStopped(
            "the time limit has come before any two arms could be compared; the same command "
            "continues, and a longer --time-limit gets further"
        )


def report(opened: OpenStudy, base: Mapping[str, Any]) -> Results:
    """Compute the results of a study whose runs have all ended, and publish them.

    Args:
        opened: the study.
        base: the metrics of the base alone on the test split.
    """
    from studies.search.campaign import find_winners

    store, material = opened.store, opened.material
    missing = [*limit_notes(store), *find_winners(store).missing]
    results = gather(
        store, base, material.provenance, missing, results_so_far(store), material.test_documents
    )
    publish(results, store, opened.tracker)
    return results


def publish(results: Results, store: Store, tracker: BackgroundTracker) -> None:
    """Write results and report, and log everything about the whole study to MLflow."""
    write_results(store.folder / "results.json", results)
    shown = write_html(results, store.records, store.study, store.folder / "report.html")
    files = {
        store.folder / name: ""
        for name in ("report.html", "results.json", "study.json", EXPLAIN_FILE)
    }
    records = list(store.records.values())
    for record in records:
        if record.stage == "confirm":
            files[store.trial_folder(record.name) / "test_block_nll.npy"] = (
                f"block_nll/{record.name}"
            )
    with tempfile.TemporaryDirectory() as temporary:
        figures = _write_figures(shown, Path(temporary))
        files |= dict.fromkeys(figures, "figures")
        tracker.finish(
            records, files, _figures(results), description=describe(results, store.study)
        )
    store.add_run_ids(tracker.tracker.service, tracker.tracker.run_ids())


def _write_figures(report: Sequence[Section], folder: Path) -> list[Path]:
    """Write the report's figures to a folder, and return their paths."""
    with suppress(OSError):  # a full disk for temporary files: the report holds the figures too
        for name, content in figure_files(report).items():
            (folder / name).write_bytes(content)
    return sorted(folder.iterdir())


def results_so_far(store: Store) -> Results | None:
    """Return the stored results, or None."""
    path = store.folder / "results.json"
    return read_results(path) if path.exists() else None


def base_metrics(folder: Path, evaluate: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the base's own test metrics, evaluated only if the stored ones are lost or damaged."""
    path = folder / "base.json"
    with suppress(InputError):
        stored: Mapping[str, Any] = read_json(path, Mapping[str, float], _BASE)
        if "ppl" in stored:
            return stored
    measured = evaluate()
    write_json(path, measured, _BASE)
    return measured


def _begin_search(opened: OpenStudy, panel: Panel, attend: Callable[[], None]) -> None:
    """Announce the search, and probe each arm at its first points.

    Args:
        opened: the study.
        panel: shows that the arms are probed, and then the search.
        attend: called every second during the probe; raises if the run should end.
    """
    store = opened.store
    study = store.study if opened.ends is None else store.plan
    times = f"{study.searches} searches of " if study.searches > 1 else ""
    panel.say(
        f"{study.name}: {times}{study.trials} trial{'s' * (study.trials > 1)} for each of "
        f"{', '.join(study.arms)}; {_rungs(study)}"
    )
    jobs = [
        _probe_job(study, arm, point) for arm in study.arms for point in first_points(study, arm)
    ]
    panel.begin_check(len(study.arms))
    opened.cluster.probe(jobs, attend)
    planned = [
        planned_trials(study, store.records, arm, s)
        for s in range(study.searches)
        for arm in study.arms
    ]
    panel.begin("search", sum(planned))


def _probe_job(study: Study, arm: str, point: Mapping[str, Any]) -> Job:
    """Return the job that probes a point of an arm."""
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


def _figures(results: Results) -> dict[str, float]:
    """Return the figures of the whole study under their MLflow names."""
    figures = {f"test/ppl_{a.arm}": a.ppl for a in results.arms}
    for c in results.comparisons:
        name = f"test/change_{c.arm}_vs_{c.reference}"
        figures[f"{name}_percent"] = c.change
        figures[f"{name}_low"] = c.low
        figures[f"{name}_high"] = c.high
        figures[f"{name}_p"] = c.p_value
        figures[f"{name}_p_holm"] = c.p_holm
    return figures
