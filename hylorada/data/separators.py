"""The separator between documents, and the test for rows that are lines of one text instead."""

from collections.abc import Iterable, Sequence

from hylorada.data.columns import Rows

DOCUMENT_SEPARATORS = ("auto", "eos", "newline", "none")

_BLANK_SHARE = 20  # rows are lines if at least one in this many is blank


def decide(rows: Sequence[Rows]) -> str:
    """Return the separator that "auto" stands for.

    "eos" is for documents: plain text files, and rows of a table unless these are lines. "newline"
    is for the lines of one running text: no row has a line break in its middle, and most rows end
    in a line break, or some rows are blank. "none" is for chats, since a chat template marks their
    ends itself.

    Args:
        rows: the rows of all splits.
    """
    if any(r.are_chats for r in rows):
        return "none"
    tables = [r for r in rows if r.column is not None]
    return "newline" if _are_lines(tables) else "eos"


def _are_lines(tables: Sequence[Rows]) -> bool:
    filled = with_newline = blank = 0
    for table in tables:
        for text in table.texts:
            if not text.strip():
                blank += table.delimiter is None  # a blank cell of a .csv file is a missing value
                continue
            if "\n" in text[:-1]:
                return False
            filled += 1
            with_newline += text.endswith("\n")
    has_blanks = blank * _BLANK_SHARE >= filled + blank
    return filled > 1 and (with_newline * 2 > filled or has_blanks)


def join(texts: Iterable[str], separator: str) -> list[str]:
    """Join rows into documents, between which packing inserts the tokenizer's end token.

    Args:
        texts: texts of the rows.
        separator: "eos": each row that is not blank is a document. "newline": the rows are lines of
            one document, and a line that doesn't end in a newline gets one. "none": the rows are
            joined unchanged.
    """
    if separator == "eos":
        return [text for text in texts if text.strip()]
    ending = "\n" if separator == "newline" else ""
    whole = "".join(text if text.endswith("\n") else text + ending for text in texts)
    return [whole] if whole.strip() else []
