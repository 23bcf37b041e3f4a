"""YAML of study files and of ``--set``: plain values, read the way people write them."""

import re
from collections.abc import Hashable
from typing import Any

import yaml

# Aliases count at their expanded size: a few lines of them can expand beyond the memory.
_MOST_VALUES = 100_000
_DEEPEST = 50
_LONGEST_WHOLE = 2048  # bits


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads some values differently from YAML 1.1.

    1e-3 is a number (YAML 1.1: text), 010 is ten (eight), 1:30 is text (90), and so is a date.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=deep)
        except (ValueError, OverflowError, KeyError, AttributeError) as error:
            # An explicit tag may not fit its value: PyYAML raises KeyError for `!!bool 7` and
            # AttributeError for `!!timestamp x`.
            raise _refusal(
                f"{str(node.value)[:40]!r} is not a valid {node.tag.rpartition(':')[2]}", node
            ) from error
        if isinstance(value, int) and value.bit_length() > _LONGEST_WHOLE:
            raise _refusal("a whole number with too many digits", node)
        return value


class _Dumper(yaml.SafeDumper):
    """A YAML writer that quotes text which the loader would read as something else."""


def _whole_number(loader: _Loader, node: yaml.Node) -> int:
    assert isinstance(node, yaml.ScalarNode)
    return int(loader.construct_scalar(node))


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """Return a text; one of several lines, such as source code, stays as it is."""
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
_NUMBERS = (
    (
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    ),
    ("tag:yaml.org,2002:int", re.compile(r"[-+]?\d+(_\d+)*$"), list("-+0123456789")),
)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if not tag.endswith((":timestamp", ":int"))]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)
for _resolver in _NUMBERS:
    _Loader.add_implicit_resolver(*_resolver)
    _Dumper.add_implicit_resolver(*_resolver)


def parse_yaml(text: str) -> Any:
    """Return the plain values of a YAML text.

    Raises:
        yaml.YAMLError: The text isn't YAML, repeats a key, contains a value that holds itself, or
            is nested too deeply or too long.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, 1, {})
        return loader.construct_document(node)
    except RecursionError as error:
        raise yaml.YAMLError("nested too deeply") from error
    finally:
        loader.dispose()


def to_yaml(values: Any, *, escaped: bool = False) -> str:
    """Return a YAML text that :func:`parse_yaml` reads as the same values.

    Args:
        values: plain values.
        escaped: whether to write all characters outside ASCII as escapes.
    """
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=not escaped)


def reason(error: yaml.YAMLError) -> str:
    """Return what is wrong with a YAML text and where, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', '')}"


def _measure(node: yaml.Node, depth: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return the number of values in a node, aliases written out, and their depth of nesting."""
    if id(node) not in known:
        known[id(node)] = (0, 0)  # unfinished
        inner = (
            [_measure(part, depth + 1, known) for part in _parts(node)] if depth <= _DEEPEST else []
        )
        known[id(node)] = (
            1 + sum(n for n, _ in inner),
            1 + max((height for _, height in inner), default=0),
        )
    values, height = known[id(node)]
    if not values:
        raise _refusal("a value that holds itself", node)
    if depth + height > _DEEPEST:
        raise _refusal(f"nested deeper than {_DEEPEST}", node)
    if values > _MOST_VALUES:
        raise _refusal(f"more than {_MOST_VALUES} values", node)
    return values, height


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        _refuse_repeated_keys(node)
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _refuse_repeated_keys(node: yaml.MappingNode) -> None:
    seen: set[Hashable] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                raise _refusal(f"{key.value!r} appears twice", key)
            seen.add((key.tag, key.value))


def _refusal(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
