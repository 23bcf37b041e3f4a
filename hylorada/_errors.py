"""Errors that a user can mend: every problem at once, each naming field, value and what is allowed."""

import difflib
from collections.abc import Iterable, Sequence


class InputError(ValueError):
    """Input that can't be used; raised before any compute, with all problems found.

    Attributes:
        problems: one line each, naming the field, its value and what is allowed.
    """

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The clause that ends an "unknown name" message: the closest allowed name, or all of them."""
    options = sorted(allowed)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"one of: {', '.join(options)}"
