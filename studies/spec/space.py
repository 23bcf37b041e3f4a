"""Search spaces that are declared, not coded: they print, validate, serialise and take overrides."""

import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from hylorada import InputError

Scalar: TypeAlias = bool | int | float | str | None
Value: TypeAlias = Scalar | list[str]
_LARGEST = 2**63  # SQLite holds smaller whole numbers
_MOST_COMBINATIONS = 4096


class Suggests(Protocol):
    """The part of ``optuna.Trial`` that a space needs."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...
    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int: ...
    def suggest_categorical(self, name: str, choices: tuple[Scalar, ...]) -> Any: ...


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both inclusive; whole numbers where both ends are."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def suggest(self, name: str, trial: Suggests) -> Value:
        if (
            self.low == self.high
        ):  # nothing to ask, and Optuna could not count the values of a range of fractions
            return self.low
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, float(self.low), float(self.high), log=self.log)

    def contains(self, value: Any) -> bool:
        return (
            _is_number(value)
            and self.low <= value <= self.high
            and (not self.whole or value == int(value))
        )

    def label(self, value: Value) -> Scalar:
        """A value as Optuna stores it."""
        assert not isinstance(value, list)
        return value

    def decoded(self, label: Any) -> Value:
        value: Value = label
        return value

    @property
    def size(self) -> int | None:
        """How many values there are; None where they can't be counted."""
        if self.low == self.high:
            return 1
        return int(self.high) - int(self.low) + 1 if self.whole else None

    def examples(self) -> tuple[Value, ...]:
        """The ends: where a range is wrong, one of them is."""
        return (self.low, self.high)

    def to_dict(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, **({"log": True} if self.log else {})}

    def __str__(self) -> str:
        return f"{self.low:g} .. {self.high:g}" + (" (log)" if self.log else "")


@dataclass(frozen=True)
class Choice:
    """One of a few values; a single one is a constant. A list is stored as its JSON text, which a database keeps."""

    options: tuple[Value, ...]

    def suggest(self, name: str, trial: Suggests) -> Value:
        return self.decoded(
            trial.suggest_categorical(name, tuple(self.label(o) for o in self.options))
        )

    def label(self, value: Value) -> Scalar:
        """A value as Optuna stores it."""
        return json.dumps(value) if isinstance(value, list) else value

    def decoded(self, label: Any) -> Value:
        """The value of a label; any other value is left as it is."""
        found = next(
            (o for o in self.options if isinstance(o, list) and self.label(o) == label), label
        )
        return list(found) if isinstance(found, list) else found

    @property
    def size(self) -> int:
        return len(self.options)

    def contains(self, value: Any) -> bool:
        return any(_encoded(o) == _encoded(value) for o in self.options)

    def examples(self) -> tuple[Value, ...]:
        return self.options

    def to_dict(self) -> dict[str, Any]:
        return {"choice": list(self.options)}

    def __str__(self) -> str:
        return " | ".join(str(o) for o in self.options)


@dataclass(frozen=True)
class Parameter:
    """One searched field, and the value of another that it depends on."""

    values: Range | Choice
    when: tuple[str, Value] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.values.to_dict(),
            **({"when": {self.when[0]: self.when[1]}} if self.when else {}),
        }

    def __str__(self) -> str:
        return str(self.values) + (f"  when {self.when[0]} is {self.when[1]}" if self.when else "")


@dataclass(frozen=True)
class Space:
    """Named parameters in the order in which they are drawn; a condition refers to an earlier one.

    Example:
        >>> space = Space.from_dict({"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "num_buckets": {"choice": [8, 16]}})
        >>> print(space.parameters["learning_rate"])
        0.0001 .. 0.01 (log)
    """  # noqa: E501

    parameters: Mapping[str, Parameter]

    def sample(self, trial: Suggests) -> dict[str, Value]:
        """Draw the active parameters; an inactive one is absent. Every value is plain."""
        drawn: dict[str, Value] = {}
        for name, parameter in self.parameters.items():
            if parameter.when is None or _holds(parameter.when, drawn):
                drawn[name] = parameter.values.suggest(name, trial)
        return drawn

    def combinations(self, names: Collection[str]) -> Iterator[dict[str, Value]]:
        """Proposals with all combinations of telling values of some parameters and of those that these depend on."""
        wanted = set(names) & self.parameters.keys()
        for name in reversed(list(self.parameters)):
            condition = self.parameters[name].when
            if name in wanted and condition is not None:
                wanted.add(condition[0])
        fields = [name for name in self.parameters if name in wanted]
        products = itertools.product(*map(self._telling, fields))
        for values in itertools.islice(products, _MOST_COMBINATIONS):
            yield self._whole(dict(zip(fields, values, strict=True)))

    def _whole(self, chosen: Mapping[str, Value]) -> dict[str, Value]:
        """A point with these values, and of each other active parameter the first example."""
        drawn: dict[str, Value] = {}
        for name, parameter in self.parameters.items():
            if parameter.when is None or _holds(parameter.when, drawn):
                drawn[name] = chosen.get(name, parameter.values.examples()[0])
        return drawn

    def _telling(self, name: str) -> list[Value]:
        """The ends of numbers, all other values, and those that a condition asks for."""
        examples = self.parameters[name].values.examples()
        numbers = sorted(
            v for v in examples if isinstance(v, int | float) and not isinstance(v, bool)
        )
        asked = [p.when[1] for p in self.parameters.values() if p.when and p.when[0] == name]
        kept: list[Value] = [
            v for v in examples if v in (*numbers[:1], *numbers[-1:], *asked) or v not in numbers
        ]
        return kept + [v for v in asked if v not in kept]

    def start(self, defaults: Mapping[str, Any]) -> dict[str, Scalar]:
        """The defaults as a first point to try, so that no arm ends below them; values outside are left open.

        Returns:
            What Optuna takes: a list is its label, see :meth:`decoded`.
        """
        return {
            name: self.parameters[name].values.label(value)
            for name, value in self._inside(defaults).items()
        }

    def first(self, defaults: Mapping[str, Any]) -> dict[str, Value]:
        """A whole point: the defaults, and where one is outside, a value of the space."""
        return self._whole(self._inside(defaults))

    def outside(self, values: Mapping[str, Any]) -> dict[str, Range | Choice]:
        """Return the searched parameters of which a value is given that they never take; a constant is not searched."""
        searched = {
            name: p.values
            for name, p in self.parameters.items()
            if name in values and p.values.size != 1
        }
        return {
            name: allowed
            for name, allowed in searched.items()
            if not allowed.contains(values[name])
        }

    def _inside(self, defaults: Mapping[str, Any]) -> dict[str, Value]:
        known = {n: p.values for n, p in self.parameters.items() if n in defaults}
        return {
            name: _plain(defaults[name])
            for name, values in known.items()
            if values.contains(defaults[name])
        }

    def decoded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Values for a configuration, of those that Optuna has stored."""
        return {
            n: self.parameters[n].values.decoded(v) if n in self.parameters else v
            for n, v in params.items()
        }

    def size(self) -> int | None:
        """How many different points there are; None where a range of real numbers makes them endless."""
        return self._count(list(self.parameters), {})

    def _count(self, names: list[str], drawn: dict[str, Any]) -> int | None:
        """Points of these parameters, given the values before them that conditions ask for."""
        if not names:
            return 1
        name, *rest = names
        parameter = self.parameters[name]
        if parameter.when is not None and not _holds(parameter.when, drawn):
            return self._count(rest, drawn)
        if (size := parameter.values.size) is None:
            return None
        asked: list[Value] = []
        for condition in (self.parameters[n].when for n in rest):
            if condition and condition[0] == name and condition[1] not in asked:
                asked.append(condition[1])
        branches = [(1, self._count(rest, {**drawn, name: value})) for value in asked]
        if size > len(asked):
            branches.append((size - len(asked), self._count(rest, drawn)))
        return None if any(n is None for _, n in branches) else sum(k * n for k, n in branches if n)

    def to_dict(self) -> dict[str, Any]:
        return {name: p.to_dict() for name, p in self.parameters.items()}

    @classmethod
    def from_dict(
        cls,
        declared: Mapping[str, Any],
        *,
        real: Collection[str] = (),
        earlier: "Space | None" = None,
    ) -> "Space":
        """Build from plain values: ``{low, high, log}``, ``{choice: [...]}``, each with ``when``, or a bare constant.

        Args:
            declared: by parameter.
            real: parameters whose ranges hold fractions, also between whole ends.
            earlier: a space drawn before this one, whose parameters conditions may name.

        Raises:
            InputError: every malformed parameter.
        """
        if not isinstance(declared, Mapping):
            raise InputError(f"space must map parameters to their values, got {declared!r}")
        parameters: dict[str, Parameter] = {}
        problems: list[str] = []
        for name, value in declared.items():
            try:
                known = {**earlier.parameters, **parameters} if earlier else parameters
                parameters[name] = _parse(name, value, known, name in real)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems)
        return cls(parameters)


def _parse(name: str, value: Any, earlier: Mapping[str, Parameter], real: bool) -> Parameter:
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
    found = _parse_range(name, rest)
    return Parameter(Range(float(found.low), float(found.high), found.log) if real else found, when)


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
    if not earlier[other].values.contains(value):
        raise InputError(
            f"space {name}: when {other} is {value!r} never holds; {other} is {earlier[other].values}"
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
    if any(
        not (o is None or isinstance(o, bool | str) or _is_number(o) or _is_names(o))
        for o in options
    ):
        raise InputError(
            f"space {name}: each choice must be a finite number, text, true, false, null or a list of names, "
            f"got {options!r}"
        )
    choice = Choice(tuple(_plain(o) for o in options))
    if len({choice.label(o) for o in choice.options}) < len(
        options
    ):  # 8 and 8.0, or 1 and true, are one to Optuna
        raise InputError(f"space {name}: choices must differ, got {options!r}")
    return choice


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
        raise InputError(
            f"space {name}: needs low <= high"
            + (", both above 0" if log else "")
            + f", got {low}, {high}"
        )
    return Range(low, high, log)


def _is_number(value: Any) -> bool:
    limit = math.inf if isinstance(value, float) else _LARGEST
    return isinstance(value, int | float) and not isinstance(value, bool) and -limit < value < limit


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)


def _plain(value: Any) -> Any:
    """Equal before and after JSON, which has no tuples."""
    return list(value) if isinstance(value, tuple) else value


def _encoded(value: Any) -> tuple[bool, Any]:
    """What two values share that count as the same: 8 and 8.0, but not 1 and true."""
    return isinstance(value, bool), _plain(value)


def _holds(condition: tuple[str, Value], drawn: Mapping[str, Value]) -> bool:
    """Whether the parameter is there, with the value that the condition asks for."""
    other, value = condition
    return other in drawn and _encoded(drawn[other]) == _encoded(value)
