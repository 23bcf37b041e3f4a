"""What MLflow's page shows of a whole study: text and base, its answer, and its first charts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.utils.mlflow_tags import (
    MLFLOW_DATASET_CONTEXT,
    MLFLOW_GIT_COMMIT,
    MLFLOW_GIT_DIRTY,
    MLFLOW_RUN_NOTE,
)

from studies.tracking.run_values import PRIMARY, hash_of, limited

PROVENANCE = "provenance.json"  # among the parent's artifacts
TRAINING = "?workflowType=machine_learning"  # without it, a page of a run is one of an application
_KIND = "mlflow.experimentKind"
_PRIMARY = "mlflow.experiment.primaryMetric.name"  # of the page's first chart
_NOTE_HASH = "hylorada.note"  # of the description as it was written here
_LONGEST_NOTE = 4900  # characters; some servers take 5,000 in a tag of an experiment
_SPLITS = ("train", "validation", "test")
_BASE = "base"  # context of the base among the inputs
_VIEW = "hylorada"  # name of the view of an experiment that shows the trials as a table
_VIEW_TAG = f"mlflow.sharedViewState.{_VIEW}"
_COLUMNS = (
    *("metrics.`test/ppl`", "metrics.`eval/ppl`", "params.`learning_rate`"),
    *(f"tags.`hylorada.{tag}`" for tag in ("arm", "stage", "search", "winner")),
)
# Of all trials, those on fresh seeds come first, the best of them at the top.
_TRIALS = {
    "searchFilter": "tags.`hylorada.trial` LIKE '%'",
    "orderByKey": "metrics.`test/ppl`",
    "orderByAsc": True,
    "selectedColumns": _COLUMNS,
}
# Experiments of other kinds open on traces of language-model applications.
EXPERIMENT_TAGS = {
    _KIND: "custom_model_development",
    _PRIMARY: PRIMARY,
    _VIEW_TAG: json.dumps(_TRIALS),
}


def few_tags(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of the parent run; the whole provenance is one of its artifacts."""
    named = {
        MLFLOW_GIT_COMMIT: provenance.get("git_commit"),
        MLFLOW_GIT_DIRTY: provenance.get("git_dirty"),
        "hylorada.command": provenance.get("command"),
    }
    return {k: limited(v) for k, v in named.items() if v is not None}


def inputs_of(provenance: Mapping[str, Any]) -> dict[str, DatasetInput]:
    """Return the splits of the text and the base as a run's inputs, by their context."""
    return {name: DatasetInput(d, [_context(name)]) for name, d in _datasets(provenance)}


def _context(name: str) -> InputTag:
    return InputTag(MLFLOW_DATASET_CONTEXT, name)


def _datasets(provenance: Mapping[str, Any]) -> Iterator[tuple[str, Dataset]]:
    for split in _SPLITS:
        if digest := provenance.get(f"{split}_fingerprint"):
            rows = {"num_rows": provenance.get(f"{split}_blocks")}
            yield split, _dataset(provenance, "data", digest, json.dumps(rows))
    if digest := provenance.get("model_fingerprint"):
        yield _BASE, _dataset(provenance, "model", digest)


def _dataset(
    provenance: Mapping[str, Any], field: str, digest: Any, profile: str | None = None
) -> Dataset:
    """Return text or base as MLflow's dataset: from the Hugging Face hub if it has a revision."""
    name, revision = str(provenance[field]), provenance.get(f"{field}_revision")
    kind, source = "local", {"uri": name}
    if revision is not None and field == "data":
        path, _, config = name.partition(":")
        kind, source = "hugging_face", {"path": path, "config_name": config, "revision": revision}
    elif revision is not None:
        repository, _, _ = name.partition(" ")  # without the bits of a base
        kind, source = "http", {"url": f"https://huggingface.co/{repository}/tree/{revision}"}
    return Dataset(name[:500], str(digest)[:36], kind, json.dumps(source), profile=profile)


def begun(provenance: Mapping[str, Any]) -> str:
    """Return the description of a study that has no answer yet, in Markdown."""
    model, data = provenance.get("model"), provenance.get("data")
    return f"A study of {model} on {data}. Its answer will appear here when it ends."


def note_tags(known: Mapping[str, str], text: str) -> dict[str, str]:
    """Return the tags that describe a run or an experiment; none if a user has described it."""
    note = known.get(MLFLOW_RUN_NOTE, "")
    if note and hash_of(note) != known.get(_NOTE_HASH):
        return {}
    text = text if len(text) <= _LONGEST_NOTE else f"{text[:_LONGEST_NOTE]}…"
    return {MLFLOW_RUN_NOTE: text, _NOTE_HASH: hash_of(text)}


def trials_view(tags: Mapping[str, str]) -> str:
    """Return the query that opens an experiment on its trials, as far as its tags allow."""
    view = f"&viewStateShareKey={_VIEW}" if _VIEW_TAG in tags else ""
    return f"{TRAINING}{view}"


def linked(description: str, experiment: str, run: str, files: Sequence[str]) -> str:
    """Return a description with links to parent run and files below its first paragraph.

    Args:
        description: Description of the study, in Markdown.
        experiment: Id of the experiment.
        run: Id of the parent run.
        files: Paths of files among the parent's artifacts.
    """
    page = f"#/experiments/{experiment}/runs"
    links = [f"[the study's run]({page}/{run}{TRAINING})"]
    links += [f"[all trials]({page}{trials_view(EXPERIMENT_TAGS)})"]
    links += [f"[{path}]({page}/{run}/artifacts/{path}{TRAINING})" for path in files]
    first, _, rest = description.partition("\n\n")
    return f"{first}\n\n{' · '.join(links)}\n\n{rest}".rstrip()
