"""The winner of a finished study as a folder: the adapter, a model card, and what is needed to evaluate it again."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import yaml

from hylorada import BaseInfo, InputError, field_problems, nearest
from hylorada.base_models.builtin_names import SMOLLM2, TINY
from hylorada.base_models.portable_names import located, portable_path
from studies.analysis.comparisons import Comparison
from studies.analysis.results import ArmResult, Results, load_records, read_results
from studies.files.folder_files import damaged, read_json, stored_study, write_atomically
from studies.files.paths import without_folder
from studies.spec.study import Study
from studies.tracking.checks import unwritable
from studies.trials.messages import CHECKPOINT, OWNER
from studies.trials.records import Record

RECORD = "export.json"
_CARD = "README.md"
_ADAPTER = "hylorada_config.json"
_AT_LEAST = {"block_size": 2, "test_blocks": 1}


class _Recorded(TypedDict, total=False):
    """What is read again of ``export.json``."""

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
    dtype: Literal["float32", "bfloat16", "float64"]


@dataclass(frozen=True)
class _Winner:
    """What is exported: one confirm run of one arm."""

    study: Study
    results: Results
    arm: ArmResult
    run: Record
    checkpoint: Path

    @property
    def ppl(self) -> float:
        """Test perplexity of this very run."""
        return self.arm.ppl_by_seed[_run_names(self.arm).index(self.run.name)]


def export_winner(
    folder: Path, output: Path, *, arm: str | None = None, seed: int | None = None
) -> dict[str, Any]:
    """Write the confirmed adapter of one arm, with its base's tokenizer and its model card.

    What is written names no place of this machine: a base or text that is a local file or folder is
    named by its path relative to the export.

    Args:
        folder: of a finished study.
        output: made if need be; an earlier export of the same study in it is replaced.
        arm: whose winner; None takes the arm of lowest mean validation NLL over the confirm runs,
            for the test split is to judge the choice, not to make it.
        seed: number of the paired seed; None takes the first.

    Returns:
        What ``export.json`` then holds.

    Raises:
        InputError: an unknown arm or seed, a lost checkpoint, another base than the study's, or no
            place to write.
    """
    from hylorada import load_tokenizer, save_adapter

    winner = _find(folder, arm, seed)
    if problem := _output_problem(output, winner.study.name):
        raise InputError(problem)
    adapter, base = _rebuilt(winner)
    tokenizer = load_tokenizer(winner.study.model)
    values = _record(winner, output)
    output.mkdir(parents=True, exist_ok=True)
    write_atomically(
        output / RECORD, json.dumps(values, indent=1)
    )  # first: it tells whose what follows is
    tokenizer.save_pretrained(output)
    save_adapter(adapter, base, output)
    write_atomically(output / _CARD, _card(winner, output))
    return values


def read_export(adapter: Path) -> Mapping[str, Any]:
    """Return what :func:`export_winner` noted in a folder, its paths as they hold in the current working folder.

    An adapter that was saved otherwise tells its base alone, or nothing.

    Raises:
        InputError: the file can't be read, or a field of it can't be used.
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
    """Whatever else is wrong with the file, loading the adapter will tell."""
    try:
        name = json.loads((adapter / _ADAPTER).read_bytes())["base"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {"model": located(name, adapter)} if isinstance(name, str) and name else {}


def refuse_lost_base(adapter: Path, model: str) -> None:
    """Refuse the base that an adapter names where it is a folder that isn't on this machine.

    Raises:
        InputError: naming the option by which to name another folder.
    """
    if os.path.isabs(model) and not os.path.isdir(model):
        raise InputError(
            f"adapter {str(adapter)!r}: its base, the folder {model!r}, isn't here; name it with --model"
        )


def base_changes(base: BaseInfo, then: Mapping[str, Any]) -> list[str]:
    """In what a base is another than the one that was noted, as far as that was."""
    parts = (
        ("weights", then.get("model_fingerprint"), base.fingerprint),
        ("config.json", then.get("model_config_fingerprint"), base.config_fingerprint),
    )
    return [
        f"{what} of fingerprint {now}, was {was}"
        for what, was, now in parts
        if was not in (None, now)
    ]


def _find(folder: Path, arm: str | None, seed: int | None) -> _Winner:
    study = Study.from_dict(stored_study(folder / "study.json"))
    results = read_results(folder / "results.json")
    arms = {a.arm: a for a in results.arms}
    if not arms:
        raise InputError(
            f"study {study.name!r}: no arm has finished the confirm stage, so there is no winner"
        )
    if arm is not None and arm not in arms:
        raise InputError(f"arm {arm!r} has no confirmed winner; {nearest(arm, arms)}")
    records = load_records(folder)
    # an arm that sees the future is nobody's best, but may be asked for
    honest = [a for a in results.arms if not _looks_ahead(records[a.trial])] or results.arms
    found = (
        arms[arm]
        if arm is not None
        else min(honest, key=lambda a: _mean_nll(_run_names(a), records))
    )
    names = _best_search(found, records)
    number = min(names) if seed is None else seed
    if number not in names:
        raise InputError(
            f"seed {number} of arm {found.arm!r} has not finished; one of: {_listed(tuple(names))}"
        )
    name = names[number]
    run = records.get(name)

    checkpoint = folder / "trials" / name / CHECKPOINT
    if run is None or not checkpoint.is_file():
        raise InputError(
            f"{checkpoint} is missing; restore it from a backup, or export another seed (--seed)"
        )
    return _Winner(study, results, found, run, checkpoint)


def _run_names(arm: ArmResult) -> tuple[str, ...]:
    """Return the names of an arm's runs; results of earlier versions leave them out."""
    return arm.runs or tuple(f"{arm.trial}-confirm-{seed:02d}" for seed in arm.seeds)


def _best_search(arm: ArmResult, records: Mapping[str, Record]) -> dict[int, str]:
    """Return the runs of the arm's search of lowest mean validation NLL, by seed."""
    searches: dict[int, dict[int, str]] = {}
    for seed, name in zip(arm.seeds, _run_names(arm), strict=True):
        record = records.get(name)
        searches.setdefault(record.search if record else 0, {})[seed] = name
    return min(searches.values(), key=lambda runs: _mean_nll(runs.values(), records))


def _mean_nll(names: Iterable[str], records: Mapping[str, Record]) -> float:
    found = [nll for name in names if name in records and (nll := records[name].nll) is not None]
    return sum(found) / len(found) if found else math.inf


def _looks_ahead(record: Record) -> bool:
    return bool(record.adapter.get("replication_noncausal_pooling"))


def _output_problem(output: Path, study: str) -> str | None:
    if output.exists() and not output.is_dir():
        return f"output {str(output)!r} is a file, must be a folder"
    if output.is_dir() and any(output.iterdir()) and read_export(output).get("study") != study:
        return f"output {str(output)!r} is not empty and holds no export of study {study!r}; name a new folder"
    problem = unwritable(output)
    return f"output {str(output)!r} can't be written: {problem}" if problem else None


def _rebuilt(winner: _Winner) -> tuple[Any, Any]:
    """The run's adapter as it ended, and its base."""
    import torch

    from hylorada import (
        Adapter,
        BatchOrder,
        HyLoRADAConfig,
        Seat,
        TrainingConfig,
        inspect_base,
        load_base,
        load_seat,
    )

    study, run, provenance = winner.study, winner.run, winner.results.provenance
    if changes := base_changes(inspect_base(study.model), provenance):
        raise InputError(f"base {study.model!r} is another than the study's: {'; '.join(changes)}")
    base = load_base(study.model, dtype=getattr(torch, study.dtype))
    adapter = Adapter(base, HyLoRADAConfig.from_dict(run.adapter), seed=run.seed)
    training = TrainingConfig.from_dict(run.training)
    seat = Seat(
        adapter,
        training,
        BatchOrder(provenance["train_blocks"], training.batch_size, run.data_seed),
    )
    extra = load_seat(seat, winner.checkpoint)
    told = json.dumps(run.reports[-1].metrics, sort_keys=True)  # as text: NaN is equal to NaN
    if (
        extra.get(OWNER, run.digest()) != run.digest()
        or json.dumps(extra["metrics"], sort_keys=True) != told
    ):
        raise damaged(winner.checkpoint, f"it is not of {run.name} as it ended")
    if seat.step != training.max_steps:
        raise InputError(
            f"{winner.checkpoint} is of step {seat.step}, the run ended at {training.max_steps}"
        )
    if adapter.update_is_zero():
        raise InputError(
            f"{winner.checkpoint}: adapter has no effect, its B matrices are all zero after training"
        )
    return adapter, base


def _portable(name: str, output: Path) -> str:
    """A study's base or text as it may be published; studies hold local ones by their absolute paths."""
    return portable_path(name, output) if os.path.isabs(name) else name


def _record(winner: _Winner, output: Path) -> dict[str, Any]:
    """What it takes to evaluate the adapter as the study did, and what came out then."""
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
        "seed": winner.run.number,
        "test_ppl": winner.ppl,
        "model": _portable(study.model, output),
        "data": _portable(study.data, output),
        "text_column": study.text_column,
        "document_separator": study.document_separator,
        "block_size": study.block_size,
        "spread_test": study.spread_test,
        "dtype": study.dtype,
        **{name: provenance[name] for name in copied},
        "model_config_fingerprint": provenance.get("model_config_fingerprint"),
    }


def _card(winner: _Winner, output: Path) -> str:
    study, arm, run, provenance = winner.study, winner.arm, winner.run, winner.results.provenance
    model = _portable(study.model, output)
    place = ", a local folder by its path from here" if os.path.isabs(study.model) else ""
    seeds = tuple(sorted(set(arm.seeds)))
    sections = [
        _front_matter(winner),
        f"# {study.name}: {arm.arm}",
        f"A HyLoRADA adapter of `{without_folder(study.model)}`, exported by `hylorada export` from a study: "
        f"arm `{arm.arm}`, configuration of search trial `{winner.run.winner}`, "
        f"confirm run `{run.name}` (paired seed {run.number}).",
        "## Result",
        _perplexities(winner),
        "\n".join(
            f"- {_sentence(c)}"
            for c in winner.results.comparisons
            if arm.arm in (c.arm, c.reference)
        ),
        winner.results.verdict,
        "## Made with",
        _table(
            {
                "base": f"`{model}`{place}, {_base(winner)}, {study.dtype}",
                "data": f"`{without_folder(study.data)}`, fingerprint `{provenance['data_fingerprint']}`",
                "block size": f"{study.block_size} tokens",
                "training": f"{run.training['max_steps']} steps of {run.training['batch_size']} blocks, "
                f"learning rate {run.training['learning_rate']:g}",
                "paired seeds": f"{_listed(seeds)}; this one {run.number}; adapter's seed {run.seed}",
                "trainable parameters": f"{arm.parameters:,}",
                "study": f"seed {study.seed}, fingerprint `{provenance['study_fingerprint']}`",
                "versions": _versions(provenance),
            }
        ),
        "## Load it",
        _loading(winner, model),
        "## Configuration",
        "```json\n" + json.dumps(dict(run.adapter), indent=2) + "\n```",
    ]
    return "\n\n".join(s for s in sections if s) + "\n"


def _front_matter(winner: _Winner) -> str:
    values: dict[str, Any] = {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["hylorada", "lora"],
    }
    if winner.results.provenance[
        "model_revision"
    ]:  # from the hub; a folder's name would mean nothing there
        values = {"base_model": winner.study.model, **values}
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---"


def _perplexities(winner: _Winner) -> str:
    results, arm = winner.results, winner.arm
    base = f", base alone {results.base_ppl:,.4f}" if results.base_ppl is not None else ""
    warning = (
        "**This adapter sees the tokens that it is to predict** (`replication_noncausal_pooling`): "
        "its perplexity is not that of a language model.\n\n"
        if _looks_ahead(winner.run)
        else ""
    )
    return (
        f"{warning}"
        f"Test perplexity of this adapter: **{winner.ppl:,.4f}**{base} ({results.tokens:,} tokens). "
        f"Mean over {len(arm.seeds)} paired runs {arm.ppl:,.4f}, median {arm.ppl_median:,.4f}."
    )


def _sentence(comparison: Comparison) -> str:
    c = comparison
    seeds = (
        f"{c.searches} searches x {c.seeds} paired seeds"
        if c.searches > 1
        else f"{c.seeds} paired seeds"
    )
    return (
        f"`{c.arm}` vs `{c.reference}`: {c.change:+.2f} % PPL, {100 * (1 - c.level):g} % interval [{c.low:+.2f}, "
        f"{c.high:+.2f}], {seeds}, Holm p = {c.p_holm:.3g}; {c.outcome or c.decision}"
    )


def _base(winner: _Winner) -> str:
    provenance = winner.results.provenance
    revision = (
        f", revision `{provenance['model_revision']}`" if provenance["model_revision"] else ""
    )
    return f"fingerprint `{provenance['model_fingerprint']}`{revision}"


def _versions(provenance: Mapping[str, Any]) -> str:
    found = {
        k.removeprefix("version."): v for k, v in provenance.items() if k.startswith("version.")
    }
    dirty = " with changes" if provenance.get("git_dirty") == "true" else ""
    commit = f"; commit `{provenance['git_commit']}`{dirty}" if "git_commit" in provenance else ""
    return ", ".join(f"{k} {v}" for k, v in found.items()) + commit


def _loading(winner: _Winner, model: str) -> str:
    config = winner.run.adapter
    ours = [
        "from hylorada import HyLoRADAModel, load_base",
        "from transformers import AutoTokenizer",
        "",
        f"model = HyLoRADAModel.from_pretrained(load_base({model!r}), '.')",
        "tokenizer = AutoTokenizer.from_pretrained('.')",
    ]
    if model in (TINY, SMOLLM2):  # from no hub
        stock = [
            "from hylorada import load_base",
            "from peft import PeftModel",
            "",
            f"base = load_base({model!r})",
        ]
    else:
        revision = winner.results.provenance["model_revision"]
        arguments = f"{model!r}" + (f", revision={revision!r}" if revision else "")
        stock = ["from peft import PeftModel", "from transformers import AutoModelForCausalLM", ""]
        stock += [f"base = AutoModelForCausalLM.from_pretrained({arguments})"]
    stock += ["model = PeftModel.from_pretrained(base, '.')"]
    left_out = [
        part
        for part, there in (
            ("position bias", config["position_bias"]),
            ("landmarks", config["landmarks"] and config["num_landmarks"] > 0),
        )
        if there
    ]
    note = (
        f"it knows no {' and no '.join(left_out)}, so it computes the LoRA part alone"
        if left_out
        else ""
    )
    return "\n\n".join(
        [
            "In this folder:",
            _code(ours),
            f"or in stock PEFT{'; ' + note if note else ', which computes the same'}:",
            _code(stock),
            "`hylorada evaluate --adapter .` measures the perplexity again.",
        ]
    )


def _code(lines: list[str]) -> str:
    return "\n".join(["```python", *lines, "```"])


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in rows.items())])


def _listed(seeds: tuple[int, ...]) -> str:
    return ", ".join(map(str, seeds))
