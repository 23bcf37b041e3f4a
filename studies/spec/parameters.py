"""Searched parameters: a range or a choice of values, read from plain values and checked."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from hylorada import InputError

Scalar: TypeAlias = bool | int | float | str | None
Value: TypeAlias = Scalar | list[str]
_LARGEST = 2**63  # SQLite stores only smaller whole numbers


class Suggests(Protocol):
    """The part of ``optuna.Trial`` that a space needs."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...
    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int: ...
    def suggest_categorical(self, name: str, choices: tuple[Scalar, ...]) -> Any: ...


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both inclusive; whole numbers if both ends are whole."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def suggest(self, name: str, trial: Suggests) -> Value:
        """Return the value that a trial suggests."""
        if self.low == self.high:
            # Optuna could not count the values of such a range of fractions.
            return self.low
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, float(self.low), float(self.high), log=self.log)

    def contains(self, value: Any) -> bool:
        """Return whether a value may be drawn."""
        return (
            _is_number(value)
            and self.low <= value <= self.high
            and (not self.whole or value == int(value))
        )

    def label(self, value: Value) -> Scalar:
        """Return a value as Optuna stores it."""
        assert not isinstance(value, list)
        return value

    def decoded(self, label: Any) -> Value:
        """Return the value that Optuna stores as a label."""
        value: Value = label
        return value

    @property
    def size(self) -> int | None:
        """Number of values; None if they can't be counted."""
        if self.low == self.high:
            return 1
        return int(self.high) - int(self.low) + 1 if self.whole else None

    def examples(self) -> tuple[Value, ...]:
        """Return both ends; if any value of a range is wrong, one of them is."""
        return (self.low, self.high)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a study file holds them."""
        return {"low": self.low, "high": self.high, **({"log": True} if self.log else {})}

    def __str__(self) -> str:
        return f"{self.low:g} .. {self.high:g}" + (" (log)" if self.log else "")


@dataclass(frozen=True)
class Choice:
    """One of a few values; a single one is a constant.

    Optuna stores a list as its JSON text, because its database can't hold lists.
    """

    options: tuple[Value, ...]

    def suggest(self, name: str, trial: Suggests) -> Value:
        """Return the value that a trial suggests."""
        labels = tuple(self.label(o) for o in self.options)
        return self.decoded(trial.suggest_categorical(name, labels))

    def label(self, value: Value) -> Scalar:
        """Return a value as Optuna stores it."""
        return json.dumps(value) if isinstance(value, list) else value

    def decoded(self, label: Any) -> Value:
        """Return the value that Optuna stores as a label; anything else is returned unchanged."""
        for option in self.options:
            if isinstance(option, list) and self.label(option) == label:
                return list(option)
        value: Value = label
        return list(value) if isinstance(value, list) else value

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.options)

    def contains(self, value: Any) -> bool:
        """Return whether a value may be drawn."""
        return any(encoded(o) == encoded(value) for o in self.options)

    def examples(self) -> tuple[Value, ...]:
        """Return all values."""
        return self.options

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a study file holds them."""
        return {"choice": list(self.options)}

    def __str__(self) -> str:
        return " | ".join(str(o) for o in self.options)


@dataclass(frozen=True)
class Parameter:
    """One searched field.

    Attributes:
        values: what is drawn.
        when: another parameter and its value on which this one depends; None if it is always drawn.
    """

    values: Range | Choice
    when: tuple[str, Value] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a study file holds them."""
        condition = {"when": {self.when[0]: self.when[1]}} if self.when else {}
        return {**self.values.to_dict(), **condition}

    def __str__(self) -> str:
        return str(self.values) + (f"  when {self.when[0]} is {self.when[1]}" if self.when else "")


def holds(condition: tuple[str, Value], drawn: Mapping[str, Value]) -> bool:
    """Return whether the parameter of a condition has been drawn with the required value."""
    other, value = condition
    return other in drawn and encoded(drawn[other]) == encoded(value)


def plain(value: Any) -> Any:
    """Return ``value``, but a tuple as a list, because that is how JSON returns it."""
    return list(value) if isinstance(value, tuple) else value


def encoded(value: Any) -> tuple[bool, Any]:
    """Return a key that equal values share: 8 and 8.0 do, 1 and true do not."""
    return isinstance(value, bool), plain(value)


def parse_parameter(
    name: str, value: Any, earlier: Mapping[str, Parameter], real: bool
) -> Parameter:
    """Read a parameter from plain values.

    Args:
        name: of the parameter, for messages.
        value: ``{low, high, log}`` or ``{choice: [...]}``, each with ``when``, or a constant.
        earlier: parameters that a condition may name.
        real: whether a range holds fractions even between whole ends.

    Raises:
        InputError: The parameter is malformed.
    """
    if not isinstance(value, Mapping):
        if isinstance(value, list | tuple):
            raise InputError(
                f"space {name}: a list must be written as choice: [...], got {value!r}"
            )
        return Parameter(_parse_choice(name, {"choice": [value]}))
    rest = dict(value)
    when = _parse_condition(name, rest.pop("when", None), earlier)
    if "choice" in rest:
        return Parameter(_parse_choice(name, rest), when)
    numbers = _parse_range(name, rest)
    if real:
        numbers = Range(float(numbers.low), float(numbers.high), numbers.log)
    return Parameter(numbers, when)


def _parse_condition(
    name: str, when: Any, earlier: Mapping[str, Parameter]
) -> tuple[str, Value] | None:
    if when is None:
        return None
    if not isinstance(when, Mapping) or len(when) != 1:
        raise InputError(f"space {name}: when must name one parameter and its value, got {when!r}")
    ((other, value),) = when.items()
    if other not in earlier:
        raise InputError(
            f"space {name}: when refers to {other!r}, which must come earlier in the space"
        )
    allowed = earlier[other].values
    if not allowed.contains(value):
        raise InputError(
            f"space {name}: when {other} is {value!r} never holds; {other} is {allowed}"
        )
    return other, value


def _parse_choice(name: str, declared: Mapping[str, Any]) -> Choice:
    options = declared["choice"]
    if set(declared) != {"choice"}:
        raise InputError(
            f"space {name}: write choice alone (and when), or low and high; got {dict(declared)!r}"
        )
    if not isinstance(options, list | tuple) or not options:
        raise InputError(
            f"space {name}: choice must be a list of at least one value, got {options!r}"
        )
    if not all(_is_option(o) for o in options):
        raise InputError(
            f"space {name}: each choice must be a finite number, text, true, false, null or a list "
            f"of names, got {options!r}"
        )
    choice = Choice(tuple(plain(o) for o in options))
    labels = {choice.label(o) for o in choice.options}
    if len(labels) < len(options):  # Optuna can't tell 8 from 8.0, or 1 from true
        raise InputError(f"space {name}: choices must differ, got {options!r}")
    return choice


def _is_option(value: Any) -> bool:
    return value is None or isinstance(value, bool | str) or _is_number(value) or _is_names(value)


def _parse_range(name: str, declared: Mapping[str, Any]) -> Range:
    if not {"low", "high"} <= set(declared) <= {"low", "high", "log"}:
        raise InputError(
            f"space {name}: write low and high (and log), or choice; got {dict(declared)!r}"
        )
    low, high, log = declared["low"], declared["high"], declared.get("log", False)
    for end in (low, high):
        if not _is_number(end):
            raise InputError(f"space {name}: low and high must be finite numbers, got {end!r}")
    if not isinstance(log, bool):
        raise InputError(f"space {name}: log must be true or false, got {log!r}")
    if low > high or (log and low <= 0):
        positive = ", both above 0" if log else ""
        raise InputError(f"space {name}: needs low <= high{positive}, got {low}, {high}")
    return Range(low, high, log)


def _is_number(value: Any) -> bool:
    limit = math.inf if isinstance(value, float) else _LARGEST
    return isinstance(value, int | float) and not isinstance(value, bool) and -limit < value < limit


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
