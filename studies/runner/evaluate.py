"""Measure a base, or an adapter on it, on a text: what ``hylorada evaluate`` does."""

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
    """What to measure on what.

    Attributes:
        adapter: folder of a saved adapter; None is the base alone.
        model: base: ``tiny``, ``smollm2-135m``, a hub id or a folder.
        data: text: ``pydocs``, a hub ``name:config``, a folder or a file.
        text_column: column of a table or hub data set; None finds it.
        document_separator: between documents, see :func:`hylorada.load_text`.
        split: of the text.
        block_size: T, tokens a block.
        blocks: how many of the split, from its start; None takes all.
        spread: whether these are taken evenly over the split instead, as studies do.
        dtype: of the base.
        model_fingerprint: of the base that the adapter was trained on; None where that isn't known.
        model_config_fingerprint: of its config.json, likewise.
        data_fingerprint: of the text that it was trained on, where this is to be the same; else None.
    """

    adapter: Path | None = None
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

    @classmethod
    def options(cls) -> list[str]:
        """The fields that the command line sets."""
        names = [f.name for f in dataclasses.fields(cls)]
        return [
            n for n in names if n not in ("adapter", "spread") and not n.endswith("_fingerprint")
        ]

    @classmethod
    def of(cls, adapter: Path | None, options: Mapping[str, Any]) -> Self:
        """What is asked for; where that is silent, what an exported adapter was tested on.

        Args:
            adapter: folder of a saved adapter.
            options: by field, None where not given.
        """
        given = {k: v for k, v in options.items() if v is not None}
        if adapter is None:
            return cls(**given)
        adapter = adapter.expanduser()
        record = read_export(adapter)
        taken = ["model", "model_fingerprint", "model_config_fingerprint", "dtype", "block_size"]
        if "data" not in given:
            taken += ["data", "data_fingerprint", "text_column", "document_separator"]
        known = {name: record[name] for name in taken if name in record}
        if "data" in known:  # before the field there was, an end token stood between any two rows
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
    """The figures, by the names that command line and MLflow use, and what the reader must know.

    Args:
        request: what to measure.
        say: is told of the text that was read, before anything is computed.

    Raises:
        InputError: an unknown split, a block longer than the base takes, more blocks than there are, a loss that is
            not finite, or what base, text or adapter object to.
    """
    import torch

    from hylorada import (
        SPLITS,
        Pack,
        build_blocks,
        inspect_base,
        load_adapter,
        load_base,
        load_text,
        load_tokenizer,
    )
    from hylorada import evaluate as evaluate_pack

    if request.split not in SPLITS:
        raise InputError(f"split {request.split!r} is unknown; {nearest(request.split, SPLITS)}")
    info = inspect_base(request.model)
    if info.max_positions and request.block_size > info.max_positions:
        raise InputError(
            f"block_size {request.block_size} exceeds model limit {info.max_positions} ({request.model})"
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
    found = evaluate_pack(Pack(base), adapters, blocks)[0]
    if not math.isfinite(found.nll):
        on_it = "" if request.adapter is None else f" with adapter {str(request.adapter)!r}"
        raise InputError(
            f"model {request.model!r}{on_it}: its loss is not finite (NLL {found.nll} in {request.dtype})"
        )
    figures = {**found.metrics(), "tokens": found.tokens, "blocks": blocks.num_blocks}
    notes = _notes(request, info, text.fingerprint) + _length_notes(adapters, request.block_size)
    return {**figures, "data_fingerprint": text.fingerprint, **text_facts(text, tokenizer)}, notes


def _length_notes(adapters: Sequence[Adapter], block_size: int) -> list[str]:
    """Where buckets stand for other positions than in training."""
    lengths = {a.config.max_positions for a in adapters} - {None, block_size}
    return [
        f"the adapter was trained on blocks of {n} tokens, these have {block_size} (--block-size)"
        for n in lengths
    ]


def _notes(request: Request, base: BaseInfo, text: str) -> list[str]:
    """Where base or text are not those of the adapter's study; that may well be the question."""
    parts = (
        ("another base", request.model_fingerprint, base.fingerprint),
        (
            "a base of another config.json",
            request.model_config_fingerprint,
            base.config_fingerprint,
        ),
        ("another text", request.data_fingerprint, text),
    )
    return [
        f"the adapter was trained on {what}: fingerprint {then}, this one has {now}"
        for what, then, now in parts
        if then not in (None, now)
    ]
