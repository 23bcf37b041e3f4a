"""The configurations that explain a winner: the path from the defaults to it, and its neighbours.

They follow from the space and two of its points, so they are fixed before anything is measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from studies.spec.space import Choice, Range, Space

Point = Mapping[str, Any]
_STEPS = 3  # from one end of a range to the other
_DIGITS = 3  # significant digits of a value that no trial has proposed


@dataclass(frozen=True)
class Move:
    """A change of one parameter.

    Attributes:
        parameter: Name of the parameter.
        start: The whole point before the change.
        end: The whole point after it.
        also: Conditional parameters that the change makes active, with their values.
    """

    parameter: str
    start: Point
    end: Point
    also: Point = field(default_factory=dict)


def path(space: Space, names: Sequence[str], start: Point, goal: Point) -> tuple[Move, ...]:
    """Return the moves that lead from one point to another, one parameter at a time.

    The order is that of the space, which is declared before anything is measured: a path that takes
    the best step first would have to be chosen by the same noisy losses that are reported
    afterwards. A conditional parameter that a move makes active takes the goal's value in the same
    move, and one that it makes inactive is dropped.

    Args:
        space: The space of both points.
        names: Parameters in which the points may differ.
        start: First point of the path.
        goal: Last point of the path.
    """
    moves: list[Move] = []
    point = start
    for name in (n for n in space.parameters if n in names and n in goal):
        if point.get(name) != goal[name]:
            moves.append(_move(space, point, name, goal[name], goal))
            point = moves[-1].end
    return tuple(moves)


def neighbours(
    space: Space, names: Sequence[str], point: Point, defaults: Point
) -> tuple[Move, ...]:
    """Return the moves that lead one step away from a point, in each parameter by itself.

    Args:
        space: The space of the point.
        names: Parameters to move.
        point: Start of every move.
        defaults: Values for the conditional parameters that a move makes active.
    """
    moves = []
    for name in (n for n in space.parameters if n in names and n in point):
        for value in _one_step(space.parameters[name].values, point[name]):
            moves.append(_move(space, point, name, value, defaults))
    return tuple(moves)


def _move(space: Space, point: Point, name: str, value: Any, otherwise: Point) -> Move:
    end = space.first({**otherwise, **point, name: value})
    also = {n: v for n, v in end.items() if n not in point and n != name}
    return Move(name, point, end, also)


def _one_step(values: Range | Choice, value: Any) -> list[Any]:
    return (
        _range_steps(values, value) if isinstance(values, Range) else _choice_steps(values, value)
    )


def _choice_steps(choice: Choice, value: Any) -> list[Any]:
    """Return the next lower and the next higher number, or all others if not all are numbers."""
    options = list(choice.options)
    if all(isinstance(o, int | float) and not isinstance(o, bool) for o in options):
        numbers = sorted(o for o in options if isinstance(o, int | float))
        place = numbers.index(value)
        return [numbers[i] for i in (place - 1, place + 1) if 0 <= i < len(numbers)]
    return [o for o in options if o != value]


def _range_steps(span: Range, value: float) -> list[float]:
    """Return the values a third of the range below and above ``value``.

    The third is measured on the range's scale, and the results are clipped to the range.
    """
    if span.log:
        factor = (span.high / span.low) ** (1 / _STEPS)
        wanted = [value / factor, value * factor]
    else:
        step = (span.high - span.low) / _STEPS
        wanted = [value - step, value + step]
    rounded = [_rounded(span, value, x) for x in wanted]
    inside = [min(max(x, span.low), span.high) for x in rounded]
    return [x for x in inside if x != value]


def _rounded(span: Range, value: float, wanted: float) -> float:
    """Return the wanted value rounded to few digits; whole numbers move by at least 1."""
    if not span.whole:
        return float(f"{wanted:.{_DIGITS}g}")
    return (
        min(round(wanted), int(value) - 1) if wanted < value else max(round(wanted), int(value) + 1)
    )
