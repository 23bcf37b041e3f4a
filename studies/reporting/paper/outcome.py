"""What a study has found, in sentences: its verdict, recommendations and notes as Markdown."""

import re
from collections.abc import Iterable

from studies.analysis.results import Results

# Signs that Markdown would read as markup where they stand: a_b and "p < 0.05" are plain text.
_MARKUP = re.compile(r"([\\`*]|(?<!\w)_|_(?!\w)|<(?=\S)|\](?=[(\[]))")


def outcome_markdown(results: Results) -> str:
    """Return the verdict with all that the report says beside its tables; parts may be missing."""
    parts = [
        f"# {_plain(results.study)}",
        _plain(results.verdict),
        _plain(results.next_step.says) if results.next_step else "",
        _listed("By use", results.recommendations),
        _listed("Published claims", (f"{c.claim}: {c.says} {c.note}" for c in results.replication)),
        _listed("Notes", results.notes),
        _listed("Earlier verdicts, oldest first", results.earlier),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _listed(title: str, lines: Iterable[str]) -> str:
    items = [f"- {_plain(line)}" for line in lines]
    return "\n".join([f"## {title}", "", *items]) if items else ""


def _plain(text: str) -> str:
    """Return a text on one line, without characters that Markdown would read as markup."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
