"""Measure a base, or an adapter on it, on a text: what ``hylorada evaluate`` does."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hylorada import InputError, nearest

from ._export import read_record


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to measure on what.

    Attributes:
        adapter: folder of a saved adapter; None is the base alone.
        model: base: ``tiny``, ``smollm2-135m``, a hub id or a folder.
        data: text: ``pydocs``, a hub ``name:config``, a folder or a file.
        text_column: column of a table or hub data set; None finds it.
        split: of the text.
        block_size: T, tokens a block.
        blocks: the first of the split; None takes all.
        dtype: of the base.
        model_fingerprint: of the base that the adapter was trained on; None where that isn't known.
        data_fingerprint: of the text that it was trained on, where this is to be the same; else None.
    """

    adapter: Path | None = None
    model: str = "tiny"
    data: str = "pydocs"
    text_column: str | None = None
    split: str = "test"
    block_size: int = 128
    blocks: int | None = None
    dtype: str = "float32"
    model_fingerprint: str | None = None
    data_fingerprint: str | None = None

    @classmethod
    def options(cls) -> list[str]:
        """The fields that the command line sets."""
        names = [f.name for f in dataclasses.fields(cls)]
        return [n for n in names if n != "adapter" and not n.endswith("_fingerprint")]

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
        record = read_record(adapter)
        taken = ["model", "model_fingerprint", "dtype", "block_size"]
        if "data" not in given:
            taken += ["data", "data_fingerprint", "text_column"]
        known = {name: record[name] for name in taken if name in record}
        if "data" not in given and "block_size" not in given and given.get("split", "test") == "test":
            known["blocks"] = record.get("test_blocks")
        return cls(adapter=adapter, **{**known, **given})


def measure(request: Request) -> tuple[dict[str, Any], list[str]]:
    """The figures, by the names that command line and MLflow use, and what the reader must know.

    Raises:
        InputError: an unknown split, a block longer than the base takes, or what base, text or adapter object to.
    """
    import torch

    from hylorada import SPLITS, Pack, build_blocks, inspect_base, load_adapter, load_base, load_text, load_tokenizer
    from hylorada import evaluate as evaluate_pack

    if request.split not in SPLITS:
        raise InputError(f"split {request.split!r} is unknown; {nearest(request.split, SPLITS)}")
    info = inspect_base(request.model)
    if info.max_positions and request.block_size > info.max_positions:
        raise InputError(f"block_size {request.block_size} exceeds model limit {info.max_positions} ({request.model})")
    text = load_text(request.data, text_column=request.text_column)
    tokenizer = load_tokenizer(request.model)
    documents = text.splits[request.split]
    blocks = build_blocks(documents, tokenizer, request.block_size, split=request.split).head(request.blocks)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = load_base(request.model, dtype=getattr(torch, request.dtype), device=device)
    adapters = [] if request.adapter is None else [load_adapter(base, request.adapter)]
    found = evaluate_pack(Pack(base), adapters, blocks)[0]
    figures = {**found.metrics(), "tokens": found.tokens, "blocks": blocks.num_blocks}
    return {**figures, "data_fingerprint": text.fingerprint}, _notes(request, info.fingerprint, text.fingerprint)


def _notes(request: Request, base: str, text: str) -> list[str]:
    """Where base or text are not those of the adapter's study; that may well be the question."""
    pairs = (("base", request.model_fingerprint, base), ("text", request.data_fingerprint, text))
    return [
        f"the adapter was trained on another {what}: fingerprint {then}, this one has {now}"
        for what, then, now in pairs
        if then not in (None, now)
    ]
