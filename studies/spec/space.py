"""Search spaces as declarations: they can be printed, checked, stored and overridden."""

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hylorada import InputError
from studies.spec.parameters import (
    Choice,
    Parameter,
    Range,
    Scalar,
    Suggests,
    Value,
    holds,
    parse_parameter,
    plain,
)

__all__ = ["Choice", "Parameter", "Range", "Scalar", "Space", "Value"]

_MOST_COMBINATIONS = 4096


@dataclass(frozen=True)
class Space:
    """Named parameters in the order in which they are drawn; a condition refers to an earlier one.

    Example:
        >>> space = Space.of(learning_rate=Range(1e-4, 1e-2, log=True), num_buckets=Choice((8, 16)))
        >>> print(space.parameters["learning_rate"])
        0.0001 .. 0.01 (log)
    """

    parameters: Mapping[str, Parameter]

    @classmethod
    def of(cls, **declared: Range | Choice | Parameter) -> "Space":
        """Build from parameters by name; a bare range or choice has no condition."""
        return cls(
            {n: p if isinstance(p, Parameter) else Parameter(p) for n, p in declared.items()}
        )

    def sample(self, trial: Suggests) -> dict[str, Value]:
        """Draw the active parameters; inactive ones are absent. Every value is plain."""
        drawn: dict[str, Value] = {}
        for name, parameter in self.parameters.items():
            if parameter.when is None or holds(parameter.when, drawn):
                drawn[name] = parameter.values.suggest(name, trial)
        return drawn

    def combinations(self, names: Collection[str]) -> Iterator[dict[str, Value]]:
        """Yield proposals with all combinations of the values of some parameters worth checking.

        See :meth:`_telling` for these values. Parameters that these depend on are combined too. At
        most 4096 proposals are made.
        """
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
        """Return a point with these values and, of other active parameters, the first example."""
        drawn: dict[str, Value] = {}
        for name, parameter in self.parameters.items():
            if parameter.when is None or holds(parameter.when, drawn):
                drawn[name] = chosen.get(name, parameter.values.examples()[0])
        return drawn

    def _telling(self, name: str) -> list[Value]:
        """Return the values that suffice to find a mistake.

        They are the smallest and the largest number, all values that are not numbers, and all
        values that a condition requires.
        """
        examples = self.parameters[name].values.examples()
        numbers = sorted(
            v for v in examples if isinstance(v, int | float) and not isinstance(v, bool)
        )
        conditions = [p.when for p in self.parameters.values() if p.when]
        required = [value for other, value in conditions if other == name]
        kept: list[Value] = [
            v for v in examples if v in (*numbers[:1], *numbers[-1:], *required) or v not in numbers
        ]
        return kept + [v for v in required if v not in kept]

    def start(self, defaults: Mapping[str, Any]) -> dict[str, Scalar]:
        """Return the defaults that lie inside the space, as a first point to try.

        With them as its first trial, no arm ends below its defaults. Values outside are left open.

        Returns:
            What Optuna takes: labels instead of lists, see :meth:`decoded`.
        """
        return {
            name: self.parameters[name].values.label(value)
            for name, value in self._inside(defaults).items()
        }

    def first(self, defaults: Mapping[str, Any]) -> dict[str, Value]:
        """Return a whole point: the defaults, and a value of the space for each one outside."""
        return self._whole(self._inside(defaults))

    def outside(self, values: Mapping[str, Any]) -> dict[str, Range | Choice]:
        """Return the searched parameters whose given value is outside their range or choice.

        A constant is not searched.
        """
        return {
            name: parameter.values
            for name, parameter in self.parameters.items()
            if name in values
            and parameter.values.size != 1
            and not parameter.values.contains(values[name])
        }

    def _inside(self, defaults: Mapping[str, Any]) -> dict[str, Value]:
        return {
            name: plain(defaults[name])
            for name, parameter in self.parameters.items()
            if name in defaults and parameter.values.contains(defaults[name])
        }

    def decoded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return parameters that Optuna has stored as values for a configuration."""
        return {
            n: self.parameters[n].values.decoded(v) if n in self.parameters else v
            for n, v in params.items()
        }

    def size(self) -> int | None:
        """Return the number of distinct points; None if a real-valued range makes it infinite."""
        return self._count(list(self.parameters), {})

    def _count(self, names: list[str], drawn: dict[str, Any]) -> int | None:
        """Count the points of these parameters, given the earlier values that conditions need."""
        if not names:
            return 1
        name, *rest = names
        parameter = self.parameters[name]
        if parameter.when is not None and not holds(parameter.when, drawn):
            return self._count(rest, drawn)
        if (size := parameter.values.size) is None:
            return None
        required: list[Value] = []
        for condition in (self.parameters[n].when for n in rest):
            if condition and condition[0] == name and condition[1] not in required:
                required.append(condition[1])
        branches = [(1, self._count(rest, {**drawn, name: value})) for value in required]
        if size > len(required):
            branches.append((size - len(required), self._count(rest, drawn)))
        if any(count is None for _, count in branches):
            return None
        return sum(times * count for times, count in branches if count)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a study file holds them."""
        return {name: p.to_dict() for name, p in self.parameters.items()}

    @classmethod
    def from_dict(
        cls,
        declared: Mapping[str, Any],
        *,
        real: Collection[str] = (),
        earlier: "Space | None" = None,
    ) -> "Space":
        """Build from plain values and check them.

        Args:
            declared: for each parameter ``{low, high, log}`` or ``{choice: [...]}``, each with
                ``when``, or a bare constant.
            real: parameters whose ranges hold fractions, even between whole ends.
            earlier: a space drawn before this one, whose parameters conditions may name.

        Raises:
            InputError: All malformed parameters.
        """
        if not isinstance(declared, Mapping):
            raise InputError(f"space must map parameters to their values, got {declared!r}")
        parameters: dict[str, Parameter] = {}
        problems: list[str] = []
        for name, value in declared.items():
            known = {**earlier.parameters, **parameters} if earlier else parameters
            try:
                parameters[name] = parse_parameter(name, value, known, name in real)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems)
        return cls(parameters)
