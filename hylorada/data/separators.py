"""What stands between two documents of a text, and when rows are no documents but lines of one running text."""

from collections.abc import Iterable, Sequence

from hylorada.data.columns import Rows

DOCUMENT_SEPARATORS = ("auto", "eos", "newline", "none")

_BLANK_SHARE = 20  # rows are lines where at least one in so many is blank


def decide(rows: Sequence[Rows]) -> str:
    """Return the separator that "auto" stands for.

    "eos" for documents: plain text files, and rows of a table unless these are lines. "newline" for the lines of one
    running text: no row has a line break within, and most rows carry their own at the end, or blank rows stand between
    them. "none" for chats, since a chat template marks their ends itself.

    Args:
        rows: of all splits.
    """
    if any(r.are_chats for r in rows):
        return "none"
    tables = [r for r in rows if r.column is not None]
    return "newline" if _are_lines(tables) else "eos"


def _are_lines(tables: Sequence[Rows]) -> bool:
    filled = own = blank = 0
    for table in tables:
        for text in table.texts:
            if not text.strip():
                blank += table.delimiter is None  # a blank cell of a .csv file is a missing value
                continue
            if "\n" in text[:-1]:
                return False
            filled += 1
            own += text.endswith("\n")
    return filled > 1 and (own * 2 > filled or blank * _BLANK_SHARE >= filled + blank)


def join(texts: Iterable[str], separator: str) -> list[str]:
    """Return the documents that rows make; the tokenizer's end token is put between these when they are packed.

    Args:
        texts: of the rows.
        separator: "eos": each row that is not blank is a document. "newline": the rows are lines of one document, and
            a line that doesn't end in a newline gets one. "none": they are joined as they are.
    """
    if separator == "eos":
        return [text for text in texts if text.strip()]
    ending = "\n" if separator == "newline" else ""
    whole = "".join(text if text.endswith("\n") else text + ending for text in texts)
    return [whole] if whole.strip() else []
