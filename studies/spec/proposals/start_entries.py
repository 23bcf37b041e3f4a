"""The configurations that a study tries first: its ``start`` list, read and checked.

An entry maps searched parameters to values. Values under ``arms`` are for one arm each, all others
for every arm that searches the parameter. What an entry leaves out takes the study's default.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hylorada import HyLoRADAConfig, TrainingConfig, nearest
from studies.spec.arms import Arm
from studies.spec.parameters import Choice, Range, encoded
from studies.spec.space import Space

Entry: TypeAlias = Mapping[str, Any]
ARMS, FROM = "arms", "from"  # the keys of an entry that are not parameters


def arm_values(entry: Entry, arm: str) -> dict[str, Any]:
    """Return the values that an entry gives an arm, some of which it may not search."""
    return {**_shared(entry), **entry.get(ARMS, {}).get(arm, {})}


def origin(entry: Entry) -> str | None:
    """Return the name of the study whose winners an entry holds; None for one of the user's."""
    return entry.get(FROM)


def origins(start: Iterable[Entry]) -> list[str]:
    """Return the names of all studies whose winners a start list holds."""
    return list(dict.fromkeys(name for entry in start if (name := origin(entry))))


def is_reference(entry: Entry) -> bool:
    """Return whether an entry only names a study, whose winners are still to take its place."""
    return set(entry) == {FROM}


@dataclass(frozen=True)
class Searched:
    """What a study searches, and the values that it starts from.

    Attributes:
        arms: Its arms.
        common: Space of the parameters that all arms share.
        matched: Whether all arms take the same common values.
        defaults: Adapter and training fields that all arms share.
    """

    arms: Mapping[str, Arm]
    common: Space
    matched: bool
    defaults: Mapping[str, Any]

    def space(self, arm: str) -> Space:
        """Return all that is searched for an arm."""
        return Space({**self.common.parameters, **self.arms[arm].space.parameters})

    def takers(self, name: str) -> list[str]:
        """Return the arms that search a parameter."""
        return [arm for arm in self.arms if name in self.space(arm).parameters]

    def inactive(self, arm: str, values: Mapping[str, Any]) -> set[str]:
        """Return the given parameters whose condition does not hold for an arm at these values."""
        fields = {**HyLoRADAConfig().to_dict(), **TrainingConfig().to_dict(), **self.defaults}
        point = self.space(arm).first({**fields, **self.arms[arm].config, **values})
        return (values.keys() & self.space(arm).parameters.keys()) - point.keys()


def parse_start(
    declared: Any, searched: Searched | None, trials: Any
) -> tuple[tuple[Entry, ...], list[str]]:
    """Read the entries.

    Args:
        declared: Plain values.
        searched: What the study searches; None if that has mistakes.
        trials: The study's number of trials.

    Returns:
        The entries, with every value as its space holds it, and all problems.
    """
    if not isinstance(declared, list | tuple):
        return (), [f"start must be a list of configurations, got {declared!r}"]
    if searched is None:
        return (), []
    problems: list[str] = []
    for i, entry in enumerate(declared):
        problems += _problems(f"start[{i}]", entry, searched)
    if isinstance(trials, int) and len(declared) > trials:
        problems.append(
            f"start has {len(declared)} entries, more than the {trials} trials of a search; "
            "raise trials, or leave entries out"
        )
    if problems:
        return (), problems
    return tuple(_settled(entry, searched) for entry in declared), []


def _problems(where: str, entry: Any, searched: Searched) -> list[str]:
    if not isinstance(entry, Mapping) or not entry or not all(isinstance(k, str) for k in entry):
        return [f"{where} must map searched parameters to values, got {entry!r}"]
    problems: list[str] = []
    if FROM in entry and not (isinstance(entry[FROM], str) and entry[FROM]):
        problems.append(f"{where}.from must be the name of a study, got {entry[FROM]!r}")
    for name, value in _shared(entry).items():
        problems += _shared_problems(where, name, value, searched)
    by_arm = entry.get(ARMS, {})
    if not isinstance(by_arm, Mapping):
        return [*problems, f"{where}.arms must map arms to their values, got {by_arm!r}"]
    for arm, values in by_arm.items():
        problems += _arm_problems(f"{where}.arms", arm, values, searched)
    return problems or list(_inactive_problems(where, entry, searched))


def _shared_problems(where: str, name: str, value: Any, searched: Searched) -> list[str]:
    takers = searched.takers(name)
    if not takers:
        known = {n for arm in searched.arms for n in searched.space(arm).parameters}
        return [f"{where}: no arm searches {name!r}; {nearest(name, known)}"]
    outside: dict[str, list[str]] = {}
    for arm in takers:
        allowed = searched.space(arm).parameters[name].values
        if not allowed.contains(value):
            outside.setdefault(str(allowed), []).append(arm)
    return [
        f"{where}.{name} {value!r} is outside the searched range {allowed} of "
        f"arm{'s' * (len(arms) > 1)} {', '.join(arms)}"
        for allowed, arms in outside.items()
    ]


def _arm_problems(where: str, arm: Any, values: Any, searched: Searched) -> list[str]:
    if arm not in searched.arms:
        return [f"{where}: unknown arm {arm!r}; {nearest(str(arm), searched.arms)}"]
    if not isinstance(values, Mapping):
        return [f"{where}.{arm} must map searched parameters to values, got {values!r}"]
    parameters, problems = searched.space(arm).parameters, []
    for name, value in values.items():
        if name not in parameters:
            hint = nearest(str(name), parameters)
            problems.append(f"{where}.{arm}: this arm does not search {name!r}; {hint}")
        elif searched.matched and name in searched.common.parameters:
            problems.append(f"{where}.{arm}.{name}: all arms share it, so give it outside of arms")
        elif not (allowed := parameters[name].values).contains(value):
            problems.append(
                f"{where}.{arm}.{name} {value!r} is outside the searched range {allowed}"
            )
    return problems


def _inactive_problems(where: str, entry: Entry, searched: Searched) -> Iterator[str]:
    """Yield a problem for each value whose parameter has a condition that does not hold."""
    inactive = {arm: searched.inactive(arm, arm_values(entry, arm)) for arm in searched.arms}
    for name in _shared(entry):
        takers = searched.takers(name)
        if all(name in inactive[arm] for arm in takers):
            yield f"{where}.{name} {_condition(searched, takers[0], name)}"
    for arm, values in entry.get(ARMS, {}).items():
        for name in (n for n in values if n in inactive[arm]):
            yield f"{where}.{ARMS}.{arm}.{name} {_condition(searched, arm, name)}"


def _condition(searched: Searched, arm: str, name: str) -> str:
    when = searched.space(arm).parameters[name].when
    assert when is not None
    return f"is searched only when {when[0]} is {when[1]!r}"


def _shared(entry: Entry) -> dict[str, Any]:
    return {k: v for k, v in entry.items() if k not in (ARMS, FROM)}


def _settled(entry: Entry, searched: Searched) -> Entry:
    """Return an entry whose values are equal to those of the spaces in their type, too."""
    shared = {
        name: same_value(searched.space(searched.takers(name)[0]).parameters[name].values, value)
        for name, value in _shared(entry).items()
    }
    by_arm: dict[str, dict[str, Any]] = {}
    for arm, values in entry.get(ARMS, {}).items():
        parameters = searched.space(arm).parameters
        by_arm[arm] = {n: same_value(parameters[n].values, v) for n, v in values.items()}
    named = {FROM: entry[FROM]} if FROM in entry else {}
    return {**named, **shared, **({ARMS: by_arm} if by_arm else {})}


def same_value(allowed: Range | Choice, value: Any) -> Any:
    """Return a value that the space contains as the space holds it: 1.0 instead of 1 in a range."""
    if isinstance(allowed, Choice):
        return next(option for option in allowed.options if encoded(option) == encoded(value))
    return int(value) if allowed.whole else float(value)
