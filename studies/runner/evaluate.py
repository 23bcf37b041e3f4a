"""The measurement of ``hylorada evaluate``: a base, or an adapter on it, on a text."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hylorada import Adapter, BaseInfo, Evaluation, InputError, nearest
from studies.reporting.export import read_export, refuse_lost_base
from studies.runner.measured_losses import difference, uncertainty
from studies.runner.paired_adapters import refuse_unpaired
from studies.runner.text_notes import text_facts, text_notes
from studies.statistics.differences import Ints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hylorada import Blocks, Text

_FINGERPRINTS = {  # in the record of an exported adapter, and what a difference means
    "model_fingerprint": "another base",
    "model_config_fingerprint": "a base of another config.json",
    "data_fingerprint": "another text",
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for one measurement.

    Attributes:
        adapter: folder of a saved adapter; None means the base alone.
        landmark_design: ``FILE.py:CLASS`` of each own landmark design that the adapters have.
        against: folder of the adapter that it is compared with; None compares with none.
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
    landmark_design: Sequence[str] = ()
    against: Path | None = None
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
            adapter: folder of a saved adapter, or the id of one on the hub.
            options: value of each field, None where not given.
        """
        given = {k: v for k, v in options.items() if v is not None}
        if "against" in given:
            given["against"] = _adapter_folder(given["against"])
        if adapter is None:
            return cls(**given)
        adapter = _adapter_folder(adapter)
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


def _adapter_folder(adapter: Path) -> Path:
    """Return the folder of an adapter, downloaded if its name is an id of the hub."""
    adapter = adapter.expanduser()
    if os.path.lexists(adapter):
        return adapter
    from hylorada.saving.finding_adapters import find_adapter

    return find_adapter(str(adapter))


def measure(
    request: Request, say: Callable[[str], None] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the metrics under the names of command line and MLflow, and notes for the reader.

    With ``request.against``, its metrics are in "against" and the paired difference in
    "difference".

    Args:
        request: what to measure.
        say: called with lines that describe the text, before anything is computed.

    Raises:
        InputError: the split is unknown, a block is longer than the base allows, the split has
            fewer blocks, the loss is not finite, the two adapters are of different bases, or base,
            text or adapter are invalid.
    """
    import torch

    from hylorada import Pack, inspect_base, load_adapter, load_base, load_landmark_design
    from hylorada import evaluate as evaluate_pack

    if request.against is not None:
        refuse_unpaired(request.adapter, request.against)
    for design in request.landmark_design:
        load_landmark_design(design)
    info = inspect_base(request.model)
    measured = _measured_text(request, info, say)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = load_base(request.model, dtype=getattr(torch, request.dtype), device=device)
    folders = [f for f in (request.adapter, request.against) if f is not None]
    adapters = [load_adapter(base, folder) for folder in folders]
    pack = Pack(base)
    # One after the other, so that each gives the same bits as when it is measured alone.
    each = [[adapter] for adapter in adapters] or [[]]
    evaluations = [evaluate_pack(pack, one, measured.blocks)[0] for one in each]
    for folder, evaluation in zip(folders or (None,), evaluations, strict=True):
        _refuse_infinite(request, folder, evaluation)
    documents = measured.documents
    first, *other = evaluations
    figures = {**first.metrics(), **uncertainty(first, documents), "tokens": first.tokens}
    figures |= {"blocks": measured.blocks.num_blocks, "data_fingerprint": measured.text.fingerprint}
    figures |= text_facts(measured.text, measured.tokenizer)
    for theirs in other:
        figures["against"] = {**theirs.metrics(), **uncertainty(theirs, documents)}
        figures["difference"] = difference(first, theirs, documents)
    notes = _notes(request, info, measured.text.fingerprint)
    return figures, notes + _length_notes(adapters, request.block_size)


@dataclass(frozen=True)
class _MeasuredText:
    """The text of a measurement.

    Attributes:
        text: the text as it was read.
        tokenizer: tokenizer of the base.
        blocks: the measured blocks.
        documents: [N] document of each; None where the text has no documents.
    """

    text: "Text"
    tokenizer: "PreTrainedTokenizerBase"
    blocks: "Blocks"
    documents: Ints | None


def _measured_text(
    request: Request, info: BaseInfo, say: Callable[[str], None] | None
) -> _MeasuredText:
    from hylorada import SPLITS, build_blocks, load_text, load_tokenizer

    split, size = request.split, request.block_size
    if split not in SPLITS:
        raise InputError(f"split {split!r} is unknown; {nearest(split, SPLITS)}")
    if info.max_positions and size > info.max_positions:
        raise InputError(
            f"block_size {size} exceeds model limit {info.max_positions} ({request.model})"
        )
    tokenizer = load_tokenizer(request.model)
    text = load_text(
        request.data,
        text_column=request.text_column,
        document_separator=request.document_separator,
        tokenizer=tokenizer,
        split=split,
    )
    whole = build_blocks(
        text.splits[split], tokenizer, size, split=split, num_embeddings=info.num_embeddings
    )
    count = whole.num_blocks if request.blocks is None else request.blocks
    if not 1 <= count <= whole.num_blocks:
        raise InputError(f"`blocks` must be 1 to {whole.num_blocks}, got {count}")
    if say is not None:
        for line in text_notes(text, tokenizer, {split: whole}, request.document_separator):
            say(line)
    blocks = (whole.spread if request.spread else whole.head)(request.blocks)
    documents = None
    if text.separator == "eos" and tokenizer.eos_token_id is not None:
        places = whole.places(count, spread=request.spread)
        documents = whole.documents(tokenizer.eos_token_id)[places]
    return _MeasuredText(text, tokenizer, blocks, documents)


def _refuse_infinite(request: Request, adapter: Path | None, evaluation: Evaluation) -> None:
    if not math.isfinite(evaluation.nll):
        on_it = "" if adapter is None else f" with adapter {str(adapter)!r}"
        raise InputError(
            f"model {request.model!r}{on_it}: its loss is not finite "
            f"(NLL {evaluation.nll} in {request.dtype})"
        )


def _length_notes(adapters: Sequence[Adapter], block_size: int) -> list[str]:
    """Return notes if the buckets cover other positions than in training."""
    lengths = {a.config.max_positions for a in adapters} - {None, block_size}
    return [
        f"the adapter was trained on blocks of {n} tokens, these have {block_size} (--block-size)"
        for n in sorted(n for n in lengths if n is not None)
    ]


def _notes(request: Request, base: BaseInfo, text: str) -> list[str]:
    """Return notes if base, text or rows differ from an adapter's study; some may be intended."""
    then = {n: getattr(request, n) for n in _FINGERPRINTS}
    now = dict(zip(_FINGERPRINTS, (base.fingerprint, base.config_fingerprint, text), strict=True))
    notes = _changes("the adapter", then, now)
    if request.padded_rows:
        notes.append(
            "the adapter was trained and tested on padded rows (replication_pads); these are "
            "blocks of text, so the perplexity is another than its model card's"
        )
    if request.against is None or request.data_fingerprint is None:
        return notes
    # Their bases have been compared already.
    other = {"data_fingerprint": read_export(request.against).get("data_fingerprint")}
    return notes + _changes("the adapter of --against", other, now)


def _changes(who: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{who} was trained on {what}: fingerprint {then[name]}, this one has {now[name]}"
        for name, what in _FINGERPRINTS.items()
        if then.get(name) not in (None, now[name])
    ]
