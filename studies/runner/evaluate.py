"""The measurement of ``hylorada evaluate``: a base, or an adapter on it, on a text."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hylorada import Adapter, BaseInfo, InputError, nearest
from studies.reporting.export import read_export, refuse_lost_base
from studies.runner.text_notes import text_facts, text_notes


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for one measurement.

    Attributes:
        adapter: folder of a saved adapter; None means the base alone.
        landmark_design: ``FILE.py:CLASS``, code of an own landmark design that the adapter has.
        model: the base: ``tiny``, ``smollm2-135m``, a hub id or a folder.
        data: the text: ``pydocs``, a hub ``name:config``, a folder or a file.
        text_column: column of a table or hub data set; None detects it.
        document_separator: separator between documents, see :func:`hylorada.load_text`.
        split: split of the text.
        block_size: T, tokens per block.
        blocks: number of blocks from the start of the split; None takes all.
        spread: whether the blocks are spread evenly over the split instead, as in studies.
        dtype: data type of the base.
        model_fingerprint: fingerprint of the base that the adapter was trained on; None if unknown.
        model_config_fingerprint: fingerprint of that base's config.json; None if unknown.
        data_fingerprint: fingerprint of the text that the adapter was trained on, if the measured
            text should be the same; else None.
        padded_rows: whether the adapter's study trained and tested it on padded rows.
    """

    adapter: Path | None = None
    landmark_design: str | None = None
    model: str = "tiny"
    data: str = "pydocs"
    text_column: str | None = None
    document_separator: str = "auto"
    split: str = "test"
    block_size: int = 128
    blocks: int | None = None
    spread: bool = False
    dtype: str = "float32"
    model_fingerprint: str | None = None
    model_config_fingerprint: str | None = None
    data_fingerprint: str | None = None
    padded_rows: bool = False

    @classmethod
    def options(cls) -> list[str]:
        """Return the names of the fields that are options of the command line."""
        names = [f.name for f in dataclasses.fields(cls)]
        others = ("adapter", "spread", "padded_rows")
        return [n for n in names if n not in others and not n.endswith("_fingerprint")]

    @classmethod
    def of(cls, adapter: Path | None, options: Mapping[str, Any]) -> Self:
        """Return a request with the given options, completed from an exported adapter's test.

        Args:
            adapter: folder of a saved adapter.
            options: value of each field, None where not given.
        """
        given = {k: v for k, v in options.items() if v is not None}
        if adapter is None:
            return cls(**given)
        adapter = adapter.expanduser()
        record = read_export(adapter)
        taken = ["model", "model_fingerprint", "model_config_fingerprint", "dtype", "block_size"]
        taken += ["padded_rows"]
        if "data" not in given:
            taken += ["data", "data_fingerprint", "text_column", "document_separator"]
        known = {name: record[name] for name in taken if name in record}
        if "data" in known:  # before this field existed, an end token separated any two rows
            known.setdefault("document_separator", "eos")
        if (
            "data" not in given
            and "block_size" not in given
            and given.get("split", "test") == "test"
        ):
            known |= {
                "blocks": record.get("test_blocks"),
                "spread": record.get("spread_test", False),
            }
        if "blocks" in given:
            known["spread"] = False
        if "model" in known and "model" not in given:
            refuse_lost_base(adapter, known["model"])
        return cls(adapter=adapter, **{**known, **given})


def measure(
    request: Request, say: Callable[[str], None] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the metrics under the names of command line and MLflow, and notes for the reader.

    Args:
        request: what to measure.
        say: called with lines that describe the text, before anything is computed.

    Raises:
        InputError: the split is unknown, a block is longer than the base allows, the split has
            fewer blocks, the loss is not finite, or base, text or adapter are invalid.
    """
    import torch

    from hylorada import (
        SPLITS,
        Pack,
        build_blocks,
        inspect_base,
        load_adapter,
        load_base,
        load_landmark_design,
        load_text,
        load_tokenizer,
    )
    from hylorada import evaluate as evaluate_pack

    if request.split not in SPLITS:
        raise InputError(f"split {request.split!r} is unknown; {nearest(request.split, SPLITS)}")
    if request.landmark_design is not None:
        load_landmark_design(request.landmark_design)
    info = inspect_base(request.model)
    if info.max_positions and request.block_size > info.max_positions:
        raise InputError(
            f"block_size {request.block_size} exceeds model limit {info.max_positions} "
            f"({request.model})"
        )
    tokenizer = load_tokenizer(request.model)
    text = load_text(
        request.data,
        text_column=request.text_column,
        document_separator=request.document_separator,
        tokenizer=tokenizer,
        split=request.split,
    )
    whole = build_blocks(
        text.splits[request.split],
        tokenizer,
        request.block_size,
        split=request.split,
        num_embeddings=info.num_embeddings,
    )
    if request.blocks is not None and not 1 <= request.blocks <= whole.num_blocks:
        raise InputError(f"`blocks` must be 1 to {whole.num_blocks}, got {request.blocks}")
    if say is not None:
        for line in text_notes(text, tokenizer, {request.split: whole}, request.document_separator):
            say(line)
    blocks = (whole.spread if request.spread else whole.head)(request.blocks)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = load_base(request.model, dtype=getattr(torch, request.dtype), device=device)
    adapters = [] if request.adapter is None else [load_adapter(base, request.adapter)]
    evaluation = evaluate_pack(Pack(base), adapters, blocks)[0]
    if not math.isfinite(evaluation.nll):
        on_it = "" if request.adapter is None else f" with adapter {str(request.adapter)!r}"
        raise InputError(
            f"model {request.model!r}{on_it}: its loss is not finite "
            f"(NLL {evaluation.nll} in {request.dtype})"
        )
    figures = {**evaluation.metrics(), "tokens": evaluation.tokens, "blocks": blocks.num_blocks}
    notes = _notes(request, info, text.fingerprint) + _length_notes(adapters, request.block_size)
    return {**figures, "data_fingerprint": text.fingerprint, **text_facts(text, tokenizer)}, notes


def _length_notes(adapters: Sequence[Adapter], block_size: int) -> list[str]:
    """Return notes if the buckets cover other positions than in training."""
    lengths = {a.config.max_positions for a in adapters} - {None, block_size}
    return [
        f"the adapter was trained on blocks of {n} tokens, these have {block_size} (--block-size)"
        for n in lengths
    ]


def _notes(request: Request, base: BaseInfo, text: str) -> list[str]:
    """Return notes if base, text or rows differ from the adapter's study; some may be intended."""
    parts = (
        ("another base", request.model_fingerprint, base.fingerprint),
        (
            "a base of another config.json",
            request.model_config_fingerprint,
            base.config_fingerprint,
        ),
        ("another text", request.data_fingerprint, text),
    )
    others = [
        f"the adapter was trained on {what}: fingerprint {then}, this one has {now}"
        for what, then, now in parts
        if then not in (None, now)
    ]
    pads = (
        "the adapter was trained and tested on padded rows (replication_pads); these are blocks of "
        "text, so the perplexity is another than its model card's"
    )
    return [*others, *([pads] if request.padded_rows else [])]
