"""Descriptions of how a text was read, printed before anything runs and kept with the results."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from studies.process.listing import first_names
from studies.spec.study import Study

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hylorada import Blocks, Text
    from hylorada.data.text import SplitSource

_MOST_NAMED = 3  # file names listed for a split
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_SEPARATORS = {
    "newline": "rows are lines of one text",
    "none": "rows are joined as they are",
}


def text_facts(text: "Text", tokenizer: "PreTrainedTokenizerBase") -> dict[str, str | None]:
    """Return how rows became tokens, under the names of results and MLflow."""
    return {
        "text_column": text.column,
        "text_delimiter": text.delimiter,
        "document_separator": text.separator,
        "begin_token": "none" if tokenizer.bos_token_id is None else "not added",
    }


def count_tokens(blocks: "Blocks") -> int:
    """Return the number of tokens of a whole split, including those after its last block."""
    return blocks.input_ids.size + blocks.dropped_tokens


def text_notes(
    text: "Text", tokenizer: "PreTrainedTokenizerBase", blocks: Mapping[str, Any], separator: str
) -> tuple[str, ...]:
    """Return lines that describe what was read and how.

    Args:
        text: the text that was read.
        tokenizer: tokenizer of the base.
        blocks: the tokenised splits, with all of their blocks.
        separator: the document separator as it was set, which may be "auto".
    """
    column = [f"column {text.column!r}"] if text.column else []
    delimiter = [f"cells between {_DELIMITERS[text.delimiter]}s"] if text.delimiter else []
    how = "; ".join(
        [*column, *delimiter, _separator(text, tokenizer, separator), _begin_token(tokenizer)]
    )
    lines = [f"text {text.name}: {how}"]
    lines += [f"text {split}: {_split(text, split, blocks.get(split))}" for split in text.splits]
    return (*lines, *([f"text left out: {', '.join(text.left_out)}"] if text.left_out else ()))


def budget_notes(study: Study, train: "Blocks", num_blocks: int) -> tuple[str, ...]:
    """Return lines that say how much of the text trials read, where the study limits that.

    Args:
        study: the study, with its epochs as steps.
        train: the training blocks that it uses.
        num_blocks: number of blocks of the whole training split.
    """
    used, lines = train.num_blocks, []
    if study.train_blocks is not None and used < study.train_blocks:
        lines.append(
            f"text train: all of its {used:,} blocks, fewer than train_blocks {study.train_blocks}"
        )
    elif study.train_blocks is not None:
        lines.append(f"text train: the first {used:,} of {num_blocks:,} blocks")
    if study.epochs is not None:
        passes = "1 epoch" if study.epochs == 1 else f"{study.epochs} epochs"
        first = f"ASHA's first rung at {study.rungs()[0]}" if study.rungs() else "no rungs"
        lines.append(
            f"budget: {passes} of {used:,} blocks are {study.max_steps:,} steps a trial; "
            f"a report every {study.eval_every}, {first}"
        )
    return tuple(lines)


def _separator(text: "Text", tokenizer: "PreTrainedTokenizerBase", separator: str) -> str:
    documents = f"the end token {tokenizer.eos_token} separates documents"
    if all(len(rows) == 1 for rows in text.splits.values()) and text.column is None:
        documents = "a single document in each split"
    by = ", chosen by auto" if separator == "auto" else ""
    return f"{_SEPARATORS.get(text.separator, documents)} (document_separator {text.separator}{by})"


def _begin_token(tokenizer: "PreTrainedTokenizerBase") -> str:
    if tokenizer.bos_token_id is None:
        return "no begin token"
    adds_it = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    though = ", though the tokenizer would" if adds_it else ""
    return f"begin token {tokenizer.bos_token} is not added{though}"


def _split(text: "Text", split: str, blocks: "Blocks | None") -> str:
    source, documents = text.sources[split], len(text.splits[split])
    parts = [f"{documents:,} document" + "s" * (documents != 1)]
    if blocks is not None:
        parts.append(f"{count_tokens(blocks):,} tokens")
    if source.cut_from:
        parts.append(f"cut from {source.cut_from}")
    return ", ".join(parts) + _origin(source)


def _origin(source: "SplitSource") -> str:
    """Return the files, the number of rows, and how many of these were dropped."""
    files, parts = source.files, []
    if files:
        parts.append(first_names(files, _MOST_NAMED))
    if source.rows > len(files):
        parts.append(f"{source.rows:,} rows")
    if source.empty:
        parts.append(f"{source.empty:,} empty, dropped")
    return f" ({'; '.join(parts)})" if parts else ""
