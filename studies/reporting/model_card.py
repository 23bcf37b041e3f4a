"""The model card of an exported adapter: its result, how it was made, and how to load it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hylorada.base_models.builtin_names import SMOLLM2, TINY
from hylorada.base_models.portable_names import portable_path
from studies.analysis.comparisons import Comparison
from studies.analysis.notes import repeated_faults, sees_future
from studies.analysis.verdict import replicates
from studies.files.paths import without_folder
from studies.reporting.winner_choice import Winner
from studies.spec.common_values import seed_name
from studies.statistics.change import interval_text


def model_card(winner: Winner, output: Path) -> str:
    """Return the model card of an exported run as Markdown.

    Args:
        winner: The exported run.
        output: Folder of the export, to which local paths are relative.
    """
    study, arm, run = winner.study, winner.arm, winner.run
    model = published_name(study.model, output)
    sections = [
        _front_matter(winner),
        f"# {study.name}: {arm.arm}",
        f"A HyLoRADA adapter for `{without_folder(study.model)}`, exported from a study with "
        f"`hylorada export`: arm `{arm.arm}`, configuration of search trial `{run.winner}`, "
        f"confirm run `{run.name}` (paired seed {winner.seed}).",
        "## Result",
        _perplexities(winner),
        "\n".join(
            f"- {_sentence(c)}"
            for c in winner.results.comparisons
            if arm.arm in (c.arm, c.reference)
        ),
        winner.results.verdict,
        "## Training",
        _training(winner, model),
        "## How to load it",
        _loading(winner, model),
        "## Configuration",
        "```json\n" + json.dumps(dict(run.adapter), indent=2) + "\n```",
    ]
    return "\n\n".join(s for s in sections if s) + "\n"


def published_name(name: str, output: Path) -> str:
    """Return the name to publish for a base or text: local paths become relative to the export."""
    return portable_path(name, output) if os.path.isabs(name) else name


def own_files(winner: Winner) -> list[str]:
    """Return the file of the run's landmark design, if that is one of the user's own."""
    file, _, _ = str(winner.run.adapter["landmark_design"]).partition(":")
    return [file] if file in winner.study.designs else []


def _front_matter(winner: Winner) -> str:
    values: dict[str, Any] = {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["hylorada", "lora"],
    }
    # Only a base from the hub has a revision; a folder's name would mean nothing to the hub.
    if winner.results.provenance["model_revision"]:
        values = {"base_model": winner.study.model, **values}
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---"


def _perplexities(winner: Winner) -> str:
    results, arm = winner.results, winner.arm
    base = f", base alone {results.base_ppl:,.4f}" if results.base_ppl is not None else ""
    warning = (
        "**This adapter sees the tokens that it predicts** (`replication_noncausal_pooling`), so "
        "its perplexity is not that of a language model.\n\n"
        if sees_future(winner.run)
        else ""
    )
    if faults := [f"`{field}`" for field, _ in repeated_faults(winner.run)]:
        warning += (
            f"**This adapter repeats faults of the published code**: {', '.join(faults)}.\n\n"
        )
    runs = f"Mean over {len(arm.seeds)} paired runs: {arm.ppl:,.4f}, median {arm.ppl_median:,.4f}."
    if winner.on_padded_rows:
        return f"{warning}{_on_padded_rows(winner)} {runs}"
    return (
        f"{warning}Test perplexity of this adapter: **{winner.ppl:,.4f}**{base} "
        f"({results.tokens:,} tokens). {runs}"
    )


def _on_padded_rows(winner: Winner) -> str:
    """Say what the perplexity of a run on padded rows is of, and what it can't be compared with."""
    base_ppl = winner.results.base_ppl
    base = f", as is that of the base alone, {base_ppl:,.4f}" if base_ppl is not None else ""
    return (
        f"Test perplexity of this adapter on padded rows: **{winner.ppl:,.4f}**. Such a row is one "
        "paragraph, filled up with end-of-text tokens that count in the loss "
        "(`replication_pads`). What `hylorada evaluate` measures is the perplexity on blocks of "
        f"text{base}, and can't be compared with that on rows."
    )


def _sentence(comparison: Comparison) -> str:
    c = comparison
    seeds = replicates(c.searches, c.seeds)
    change = interval_text(c.change, c.low, c.high, f" % PPL, {100 * (1 - c.level):g} % interval")
    return (
        f"`{c.arm}` vs `{c.reference}`: {change}, {seeds}, Holm p = {c.p_holm:.3g}; "
        f"{c.outcome or c.decision}"
    )


def _training(winner: Winner, model: str) -> str:
    study, arm, run, provenance = winner.study, winner.arm, winner.run, winner.results.provenance
    place = ", a local folder relative to this one" if os.path.isabs(study.model) else ""
    data = without_folder(study.data)
    named = (seed_name(study.seed_list, number) for number in sorted(set(arm.seeds)))
    seeds = ", ".join(map(str, named))
    return _table(
        {
            "base": f"`{model}`{place}, {_base(winner)}, {study.dtype}",
            "data": f"`{data}`, fingerprint `{provenance['data_fingerprint']}`",
            "block size": f"{study.block_size} tokens",
            "training": f"{run.training['max_steps']} steps of {run.training['batch_size']} "
            f"blocks, learning rate {run.training['learning_rate']:g}",
            "paired seeds": f"{seeds}; this one {winner.seed}; adapter's seed {run.seed}",
            "trainable parameters": f"{arm.parameters:,}",
            "study": f"seed {study.seed}, fingerprint `{provenance['study_fingerprint']}`",
            "versions": _versions(provenance),
        }
    )


def _base(winner: Winner) -> str:
    provenance = winner.results.provenance
    revision = (
        f", revision `{provenance['model_revision']}`" if provenance["model_revision"] else ""
    )
    return f"fingerprint `{provenance['model_fingerprint']}`{revision}"


def _versions(provenance: Mapping[str, Any]) -> str:
    versions = {
        k.removeprefix("version."): v for k, v in provenance.items() if k.startswith("version.")
    }
    dirty = " with uncommitted changes" if provenance.get("git_dirty") == "true" else ""
    commit = f"; commit `{provenance['git_commit']}`{dirty}" if "git_commit" in provenance else ""
    return ", ".join(f"{k} {v}" for k, v in versions.items()) + commit


def _loading(winner: Winner, model: str) -> str:
    config = winner.run.adapter
    design = str(config["landmark_design"])
    own = bool(own_files(winner))
    load = [f"load_landmark_design({design!r})  # this file is code; read it first"] if own else []
    ours = [
        f"from hylorada import HyLoRADAModel, load_base{', load_landmark_design' if own else ''}",
        "from transformers import AutoTokenizer",
        "",
        *load,
        f"model = HyLoRADAModel.from_pretrained(load_base({model!r}), '.')",
        "tokenizer = AutoTokenizer.from_pretrained('.')",
    ]
    if model in (TINY, SMOLLM2):  # built in, so not on the hub
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
    measured = ", on blocks of text instead of padded rows" if winner.on_padded_rows else " again"
    note = (
        f"which has no {' and no '.join(left_out)} and so computes the LoRA part alone"
        if left_out
        else "which computes the same"
    )
    return "\n\n".join(
        [
            "In this folder:",
            _code(ours),
            f"or with stock PEFT, {note}:",
            _code(stock),
            f"`hylorada evaluate --adapter .{f' --landmark-design {design}' if own else ''}` "
            f"measures the perplexity{measured}.",
        ]
    )


def _code(lines: list[str]) -> str:
    return "\n".join(["```python", *lines, "```"])


def _table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in rows.items())])
