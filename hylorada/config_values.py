"""Checks of a configuration's values, one by one: names, types and limits."""

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hylorada.errors import nearest

# FILE.py:CLASS, a landmark design of the user's own
CUSTOM_DESIGN = re.compile(r"[\w .-]+\.py:[^\W\d]\w*")
# Lowest and highest allowed value, both inclusive.
_NUMBER_LIMITS: dict[str, tuple[float, float]] = {
    "r": (1, math.inf),
    "lora_dropout": (0.0, 0.99),
    "position_bias_buckets": (2, math.inf),
    "max_positions": (2, math.inf),
    "attention_group": (2, math.inf),
    "num_landmarks": (0, math.inf),
    "landmark_dropout": (0.0, 0.99),
    "num_buckets": (1, math.inf),
    "replication_bucket_range": (2, math.inf),
    "boundary_lr_scale": (0.0, math.inf),
    "boundary_warmup": (0.0, 1.0),
    "boundary_diversity": (0.0, math.inf),
    "boundary_repulsion": (0.0, math.inf),
    "max_steps": (1, math.inf),
    "batch_size": (1, math.inf),
    "warmup_ratio": (0.0, 1.0),
    "weight_decay": (0.0, math.inf),
    "adam_beta1": (0.0, 1 - 1e-9),
    "adam_beta2": (0.0, 1 - 1e-9),
    "seed": (-math.inf, 2**63 - 1),
}
# Beyond these numbers fp32 overflows or underflows, and the adapter's values would become NaN.
_LARGEST_WHOLE, _LARGEST_REAL, _SMALLEST = 10**9, 1e30, 1e-30
_hints = cache(get_type_hints)  # a study checks a configuration several times for each trial
_ABOVE_ZERO = ("lora_alpha", "temperature", "learning_rate", "max_grad_norm", "adam_epsilon")


def field_problems(cls: type, values: Mapping[str, Any]) -> list[str]:
    """Return one line for each unknown key, wrong type and value outside its limits.

    Args:
        cls: a configuration dataclass.
        values: its fields by name; missing ones are not looked at.
    """
    hints = _hints(cls)
    problems = []
    for name, value in values.items():
        if name not in hints:
            problems.append(f"unknown field {name!r}; {nearest(name, hints)}")
        elif message := _value_problem(name, value, hints[name]):
            problems.append(message)
    return problems


def number_limits(name: str, hint: Any) -> tuple[float, float]:
    """Return the lowest and the highest allowed value of a field that holds numbers.

    Both are allowed themselves, as :func:`field_problems` checks them; infinite where there is no
    limit.

    Args:
        name: name of the field.
        hint: type of its numbers, ``int`` or ``float``.
    """
    low, high = _NUMBER_LIMITS.get(name, (-math.inf, math.inf))
    if name in _ABOVE_ZERO:
        low = _SMALLEST
    largest = _LARGEST_REAL if hint is float else _LARGEST_WHOLE
    return low, (largest if high == math.inf else high)


def _value_problem(name: str, value: Any, hint: Any) -> str | None:
    if names := _named(hint):
        allowed, also = get_args(names), get_args(hint) if hint is not names else ()
        own = str in also and isinstance(value, str) and CUSTOM_DESIGN.fullmatch(value)
        if value in allowed or own or (value is None and type(None) in also):
            return None
        if str in also and ".py:" in str(value):
            return (
                f"{name} {value!r} must be FILE.py:CLASS without a folder, and FILE letters, "
                "digits, spaces, '_', '-' and '.'; load_landmark_design returns that name"
            )
        return f"{name} {value!r} is unknown; {nearest(str(value), allowed)}"
    if not _has_type(value, hint):
        return f"{name} must be {_describe(hint)}, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # `math.isfinite` raises OverflowError for whole numbers beyond 1e308
    if value != value or value in (math.inf, -math.inf):
        return f"{name} must be finite, got {value}"
    if name in _ABOVE_ZERO and value < _SMALLEST:
        return (
            f"{name} must be {'above 0' if value <= 0 else f'at least {_SMALLEST:g}'}, got {value}"
        )
    low, high = _NUMBER_LIMITS.get(name, (-math.inf, math.inf))
    if not low <= value <= high:
        upper = f" and at most {high:g}" if high < math.inf else ""
        return f"{name} must be at least {low:g}{upper}, got {value}"
    largest = _LARGEST_REAL if hint is float else _LARGEST_WHOLE
    return (
        f"{name} must be at most {largest:g}, got {value}"
        if high == math.inf and value > largest
        else None
    )


def _named(hint: Any) -> Any:
    """Return the ``Literal`` of a hint whose values have names, alone or beside ``str``."""
    return next((h for h in (hint, *get_args(hint)) if get_origin(h) is Literal), None)


def _has_type(value: Any, hint: Any) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str):
        return isinstance(value, hint)
    options = get_args(hint)
    if type(None) in options:
        return value is None or any(_has_type(value, o) for o in options if o is not type(None))
    return isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)


def _describe(hint: Any) -> str:
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    if hint in names:
        return names[hint]
    options: Iterable[Any] = get_args(hint)
    if type(None) in options:
        return " or ".join(_describe(o) for o in options if o is not type(None)) + " or null"
    return "a list of names"
