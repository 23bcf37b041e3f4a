"""The exceptions of hylorada, and the hint that ends a message about an unknown name.

::

    Exception
    ├── ValueError
    │   └── InputError                  input that can't be used
    │       └── UnreadableCheckpoint    a seat's file is damaged or of another version
    ├── Diverged                        a seat's loss or gradient is no longer finite
    └── DoesNotFit                      a single seat needs more memory than the device has

- ``InputError`` is raised by everything that takes input: configurations, bases, texts, adapters
  and their files, :func:`probe`. Readers of files catch it to name the file in each problem. The
  command line prints the problems and exits with 2.
- ``UnreadableCheckpoint`` is raised by :func:`load_seat` and ``read_parameters``. A study
  suppresses it, like any ``InputError`` of a checkpoint, and trains the seat again from its first
  step.
- ``Diverged`` and ``DoesNotFit`` take the place of a seat's loss in the results of
  :func:`train_step` and :func:`read_step`, because the other seats of the step are sound. A study
  records the first as a diverged trial and raises the second as that trial's failure; :func:`probe`
  turns the second into an ``InputError``. :func:`evaluate` raises the second.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Self

_MOST_NAMES = 20
# A problem that quotes something long is cut to this many characters at its beginning and its end.
_LINE = (300, 150)


class InputError(ValueError):
    """Input that can't be used; raised before any compute, with all problems at once.

    Attributes:
        problems: one line each, naming the field, its value and what is allowed.
    """

    def __init__(self, problems: Sequence[str] | str) -> None:
        lines = [problems] if isinstance(problems, str) else problems
        self.problems = [_one_line(line) for line in lines]
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[Self], tuple[list[str]]]:
        # Pickle would otherwise rebuild the exception from its message, with all problems in one.
        return type(self), (self.problems,)


class UnreadableCheckpoint(InputError):
    """A seat's file that is damaged or of another version; training it anew gives the same seat."""


class Diverged(Exception):
    """The training loss or the gradient of one seat is no longer finite.

    Attributes:
        step: the optimizer step (from 1) at which that was noticed.
    """

    def __init__(self, what: str, step: int) -> None:
        super().__init__(f"non-finite {what} at step {step}")
        self.step = step
        self._what = what

    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        # Pickle would otherwise rebuild the exception from its message alone.
        return type(self), (self._what, self.step)


class DoesNotFit(Exception):
    """A single seat needs more memory than the device has."""


def _one_line(problem: str) -> str:
    """Shorten a problem to a readable length and escape what can't be printed in one line."""
    head, tail = _LINE
    if len(problem) > head + tail:
        problem = f"{problem[:head]} … {problem[-tail:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in problem)


def nearest(name: object, allowed: Iterable[str]) -> str:
    """Return the hint that ends an "unknown name" message: the closest allowed name, or all."""
    options = sorted(allowed)
    close = difflib.get_close_matches(str(name), options, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f", … ({len(options)} in all)" if len(options) > _MOST_NAMES else ""
    return f"one of: {', '.join(options[:_MOST_NAMES])}{more}"
