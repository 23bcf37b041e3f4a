"""Errors that a user can mend: every problem at once, each naming field, value and what is allowed."""

import difflib
from collections.abc import Iterable, Sequence

_MOST_NAMES = 20
_LINE = (300, 150)  # of a problem that quotes something long: as much of its beginning and its end


class InputError(ValueError):
    """Input that can't be used; raised before any compute, with all problems found.

    Attributes:
        problems: one line each, naming the field, its value and what is allowed.
    """

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = [
            _one_line(p) for p in ([problems] if isinstance(problems, str) else problems)
        ]
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type["InputError"], tuple[list[str]]]:
        return InputError, (
            self.problems,
        )  # an exception would be made from its message, all problems in one


def _one_line(problem: str) -> str:
    """What can be shown, in one line of readable length."""
    head, tail = _LINE
    if len(problem) > head + tail:
        problem = f"{problem[:head]} … {problem[-tail:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in problem)


def nearest(name: object, allowed: Iterable[str]) -> str:
    """The clause that ends an "unknown name" message: the closest allowed name, or what there is."""
    options = sorted(allowed)
    close = difflib.get_close_matches(str(name), options, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f", … ({len(options)} in all)" if len(options) > _MOST_NAMES else ""
    return f"one of: {', '.join(options[:_MOST_NAMES])}{more}"
