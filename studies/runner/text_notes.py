"""What was read of a text: told before anything runs, and kept with the results."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hylorada import Blocks, Text
    from hylorada.data.text import SplitSource

_MOST_NAMED = 3  # files of a split
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_SEPARATORS = {
    "newline": "rows are lines of one text",
    "none": "rows are joined as they are",
}


def text_facts(text: "Text", tokenizer: "PreTrainedTokenizerBase") -> dict[str, str | None]:
    """Return how rows became tokens, by the names that results and MLflow use."""
    return {
        "text_column": text.column,
        "text_delimiter": text.delimiter,
        "document_separator": text.separator,
        "begin_token": "none" if tokenizer.bos_token_id is None else "not added",
    }


def count_tokens(blocks: "Blocks") -> int:
    """Return the tokens of a whole split, those after its last block included."""
    return blocks.input_ids.size + blocks.dropped_tokens


def text_notes(
    text: "Text", tokenizer: "PreTrainedTokenizerBase", blocks: Mapping[str, Any], asked: str
) -> tuple[str, ...]:
    """Return lines on what was read and how.

    Args:
        text: that was read.
        tokenizer: of the base.
        blocks: whole splits, those that were tokenised.
        asked: the separator as it was set.
    """
    column = [f"column {text.column!r}"] if text.column else []
    delimiter = [f"cells between {_DELIMITERS[text.delimiter]}s"] if text.delimiter else []
    how = "; ".join(
        [*column, *delimiter, _separator(text, tokenizer, asked), _begin_token(tokenizer)]
    )
    lines = [f"text {text.name}: {how}"]
    lines += [f"text {split}: {_split(text, split, blocks.get(split))}" for split in text.splits]
    return (*lines, *([f"text left out: {', '.join(text.left_out)}"] if text.left_out else ()))


def _separator(text: "Text", tokenizer: "PreTrainedTokenizerBase", asked: str) -> str:
    documents = f"the end token {tokenizer.eos_token} stands between documents"
    if all(len(found) == 1 for found in text.splits.values()) and text.column is None:
        documents = "a single document in each split"
    by = " by auto" if asked == "auto" else ""
    return f"{_SEPARATORS.get(text.separator, documents)} (document_separator {text.separator}{by})"


def _begin_token(tokenizer: "PreTrainedTokenizerBase") -> str:
    if tokenizer.bos_token_id is None:
        return "no begin token"
    own = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    return f"begin token {tokenizer.bos_token} is not added{', though the tokenizer would' if own else ''}"


def _split(text: "Text", split: str, blocks: "Blocks | None") -> str:
    source, documents = text.sources[split], len(text.splits[split])
    parts = [f"{documents:,} document" + "s" * (documents != 1)]
    if blocks is not None:
        parts.append(f"{count_tokens(blocks):,} tokens")
    if source.cut_from:
        parts.append(f"cut from {source.cut_from}")
    return ", ".join(parts) + _origin(source)


def _origin(source: "SplitSource") -> str:
    """Files, rows, and how many of these were dropped."""
    files, parts = source.files, []
    if files:
        more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
        parts.append(", ".join(files[:_MOST_NAMED]) + more)
    if source.rows > len(files):
        parts.append(f"{source.rows:,} rows")
    if source.empty:
        parts.append(f"{source.empty:,} empty, dropped")
    return f" ({'; '.join(parts)})" if parts else ""
