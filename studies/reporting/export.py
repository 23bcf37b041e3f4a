"""The winner of a finished study as a folder: adapter, model card and evaluation settings."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from hylorada import BaseInfo, InputError, field_problems
from hylorada.base_models.portable_names import located
from studies.files.folder_files import damaged, read_json, write_atomically
from studies.files.own_designs import own_designs
from studies.files.paths import unwritable
from studies.reporting.model_card import model_card, own_files, published_name
from studies.reporting.winner_choice import Winner, find_winner
from studies.trials.messages import OWNER

RECORD = "export.json"
_CARD = "README.md"
_ADAPTER = "hylorada_config.json"
_AT_LEAST = {"block_size": 2, "test_blocks": 1}


class _Recorded(TypedDict, total=False):
    """The fields of ``export.json`` that are read back."""

    model: str
    model_fingerprint: str
    model_config_fingerprint: str | None
    data: str
    data_fingerprint: str
    text_column: str | None
    document_separator: Literal["auto", "eos", "newline", "none"]
    block_size: int
    test_blocks: int
    spread_test: bool
    padded_rows: bool
    dtype: Literal["float32", "bfloat16", "float64"]


def export_winner(
    folder: Path, output: Path, *, arm: str | None = None, seed: int | None = None
) -> dict[str, Any]:
    """Write the confirmed adapter of one arm, with its base's tokenizer and its model card.

    The export names no place of this machine: a base or text that is a local file or folder is
    named by its path relative to the export.

    Args:
        folder: Folder of a finished study.
        output: Folder to write, created if it is missing; an earlier export of the same study in it
            is replaced.
        arm: Arm whose winner is exported; None takes the arm of lowest mean validation NLL over
            the confirm runs, because the test split must judge the choice, not make it.
        seed: Paired seed, by name if the study names its seeds, or by number; None takes the first.

    Returns:
        The content of ``export.json``.

    Raises:
        InputError: The arm or seed is unknown, a checkpoint is missing or damaged, the base is not
            the study's, or the output can't be written.
    """
    from hylorada import load_tokenizer, save_adapter

    winner = find_winner(folder, arm, seed)
    if problem := _output_problem(output, winner.study.name):
        raise InputError(problem)
    adapter, base = _rebuilt(winner)
    tokenizer = load_tokenizer(winner.study.model)
    values = _record(winner, output)
    output.mkdir(parents=True, exist_ok=True)
    # Written first: it tells which study the other files belong to.
    write_atomically(output / RECORD, json.dumps(values, indent=1))
    tokenizer.save_pretrained(output)
    save_adapter(adapter, base, output)
    for file in own_files(winner):
        write_atomically(output / file, winner.study.designs[file])
    write_atomically(output / _CARD, model_card(winner, output))
    return values


def read_export(adapter: Path) -> Mapping[str, Any]:
    """Return the ``export.json`` of a folder, with paths relative to the working directory.

    For an adapter that was not exported from a study, the result holds its base alone or nothing.

    Raises:
        InputError: The file can't be read, or holds a field that can't be used.
    """
    path = adapter / RECORD
    if not path.exists():
        return _saved_base(adapter)
    values: Mapping[str, Any] = read_json(path, Mapping[str, Any])
    known = {k: values[k] for k in _Recorded.__annotations__ if k in values}
    problems = field_problems(_Recorded, known) or [
        f"{k} must be at least {low}, got {known[k]}"
        for k, low in _AT_LEAST.items()
        if known.get(k, low) < low
    ]
    if problems:
        raise InputError([f"{path}: {p}" for p in problems])
    return {**values, **{k: located(values[k], adapter) for k in ("model", "data") if k in values}}


def _saved_base(adapter: Path) -> Mapping[str, Any]:
    """Return the base that a saved adapter names; empty if its file names none."""
    # Loading the adapter reports whatever else is wrong with the file.
    try:
        name = json.loads((adapter / _ADAPTER).read_bytes())["base"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {"model": located(name, adapter)} if isinstance(name, str) and name else {}


def refuse_lost_base(adapter: Path, model: str) -> None:
    """Refuse a base that is a folder missing on this machine.

    Args:
        adapter: Folder of the adapter.
        model: The base that it names.

    Raises:
        InputError: The folder is missing; the message names the option that sets another one.
    """
    if os.path.isabs(model) and not os.path.isdir(model):
        raise InputError(
            f"adapter {str(adapter)!r}: its base, the folder {model!r}, does not exist; "
            "name another one with --model"
        )


def base_changes(base: BaseInfo, then: Mapping[str, Any]) -> list[str]:
    """Return how a base differs from the recorded one, in the fingerprints that were recorded.

    Args:
        base: The base at hand.
        then: Recorded fingerprints.
    """
    parts = (
        ("weights", then.get("model_fingerprint"), base.fingerprint),
        ("config.json", then.get("model_config_fingerprint"), base.config_fingerprint),
    )
    return [
        f"{what} of fingerprint {now}, was {was}"
        for what, was, now in parts
        if was not in (None, now)
    ]


def _output_problem(output: Path, study: str) -> str | None:
    if output.exists() and not output.is_dir():
        return f"output {str(output)!r} is a file, must be a folder"
    if output.is_dir() and any(output.iterdir()) and read_export(output).get("study") != study:
        return (
            f"output {str(output)!r} is not empty and holds no export of study {study!r}; "
            "name a new folder"
        )
    problem = unwritable(output)
    return f"output {str(output)!r} can't be written: {problem}" if problem else None


def _rebuilt(winner: Winner) -> tuple[Any, Any]:
    """Return the run's adapter as it ended, and its base."""
    import torch

    from hylorada import (
        Adapter,
        BatchOrder,
        HyLoRADAConfig,
        Seat,
        TrainingConfig,
        inspect_base,
        load_base,
        load_landmark_design,
        load_seat,
    )

    study, run, provenance = winner.study, winner.run, winner.results.provenance
    if changes := base_changes(inspect_base(study.model), provenance):
        raise InputError(f"base {study.model!r} is not the study's: {'; '.join(changes)}")
    base = load_base(study.model, dtype=getattr(torch, study.dtype))
    for design, source in own_designs(study.to_dict()).items():
        load_landmark_design(design, source)
    adapter = Adapter(base, HyLoRADAConfig.from_dict(run.adapter), seed=run.seed)
    training = TrainingConfig.from_dict(run.training)
    seat = Seat(
        adapter,
        training,
        BatchOrder(provenance["train_blocks"], training.batch_size, run.data_seed),
    )
    extra = load_seat(seat, winner.checkpoint)
    # Compared as text, because NaN is not equal to NaN.
    reported = json.dumps(run.reports[-1].metrics, sort_keys=True)
    if (
        extra.get(OWNER, run.digest()) != run.digest()
        or json.dumps(extra["metrics"], sort_keys=True) != reported
    ):
        raise damaged(winner.checkpoint, f"it does not hold the end of {run.name}")
    if seat.step != training.max_steps:
        raise InputError(
            f"{winner.checkpoint} holds step {seat.step}, but the run ended at {training.max_steps}"
        )
    if adapter.update_is_zero():
        raise InputError(
            f"{winner.checkpoint}: the adapter has no effect: "
            "all its B matrices are zero after training"
        )
    return adapter, base


def _record(winner: Winner, output: Path) -> dict[str, Any]:
    """Return the settings to evaluate the adapter as the study did, and its test PPL there."""
    study, provenance = winner.study, winner.results.provenance
    copied = (
        "model_fingerprint",
        "model_revision",
        "data_fingerprint",
        "test_blocks",
        "test_fingerprint",
    )
    return {
        "study": study.name,
        "arm": winner.arm.arm,
        "trial": winner.run.winner,
        "run": winner.run.name,
        "seed": winner.seed,
        "test_ppl": winner.ppl,
        "padded_rows": winner.on_padded_rows,
        "model": published_name(study.model, output),
        "data": published_name(study.data, output),
        "text_column": study.text_column,
        "document_separator": study.document_separator,
        "block_size": study.block_size,
        "spread_test": study.spread_test,
        "dtype": study.dtype,
        **{name: provenance[name] for name in copied},
        "model_config_fingerprint": provenance.get("model_config_fingerprint"),
    }
