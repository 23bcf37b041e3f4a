"""Sentences on the runs of a study and the software that trained them."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from studies.analysis.verdict import listed
from studies.reporting.paper.prose import code
from studies.spec.study import Study
from studies.trials.records import Record

_PACKAGES = {
    "python": "Python",
    "torch": "PyTorch",
    "transformers": "transformers",
    "peft": "PEFT",
    "ray": "Ray",
    "optuna": "Optuna",
    "mlflow": "MLflow",
    "numpy": "NumPy",
}
_STAGES = {"search": "search trials", "select": "selection runs", "confirm": "confirm runs"}

_OUTSIDE = {"explain": "runs around a winner", "added": "trials added by hand"}


def run_sentences(records: Mapping[str, Record]) -> list[str]:
    """Count the runs of each stage, their steps and their time."""
    counts = []
    for stage, name in {**_STAGES, **_OUTSIDE}.items():
        states = Counter(r.state for r in records.values() if r.stage == stage)
        if states:
            each = listed([f"{n} {state}" for state, n in sorted(states.items())])
            counts.append(f"{states.total()} {name} ({each})")
    if not counts:
        return []
    steps = sum(r.step for r in records.values())
    hours = sum(r.reports[-1].seconds for r in records.values() if r.reports) / 3600
    return [
        f"The study trained {listed(counts)}, {steps:,} optimizer steps in all. Training and "
        f"evaluation took {_time(hours)}, where a run counts its share of the time in which "
        "several train together."
    ]


def _time(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"


def software_sentences(study: Study, provenance: Mapping[str, Any]) -> list[str]:
    """Name the versions, the commit and the fingerprint behind the results."""
    packages = [
        f"{name} {provenance[f'version.{key}']}"
        for key, name in _PACKAGES.items()
        if f"version.{key}" in provenance
    ]
    version = provenance.get("version.hylorada")
    ours = f"hylorada{f' {version}' if version else ''}"
    commit = provenance.get("git_commit")
    dirty = " with uncommitted changes" if provenance.get("git_dirty") == "true" else ""
    ours += f" (commit {code(commit)}{dirty})" if commit else ""
    on = f" on {listed(packages)}" if packages else ""
    sentences = [f"We used {ours}{on}."] if commit or version or packages else []
    print_ = provenance.get("study_fingerprint")
    mark = f" and fingerprint {code(print_)}" if print_ else ""
    return [*sentences, f"The study {code(study.name)} has seed {study.seed}{mark}."]
