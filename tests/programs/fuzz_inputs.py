"""Strategies for broken input: studies, YAML files, options and text files."""

import copy
import json
from typing import Any

import yaml
from hypothesis import strategies as st

from studies.learnable_bucketing import STUDY
from studies.spec.arms import ADAPTER_FIELDS, TRAINING_FIELDS

# Unusual characters of an argument or a file. A lone surrogate is Python's form of a byte that is
# not UTF-8.
_ODD = (
    "\udcff",
    "\u202e",
    "\x1b[31m",
    "\n",
    "\r\n",
    "\t",
    "\0",
    "\x85",
    "\u2028",
    "é",
    "e\u0301",
    "学",
    "😀",
    "'",
    '"',
    "{",
    "[bold]",
)
_ARGUMENT_ODD = tuple(c for c in _ODD if c != "\0")  # no argument of a process can hold NUL

_HUGE = (2**31, 2**62, 2**63 - 1, 2**63, 10**30, 10**400)
_REALS = (
    float("nan"),
    float("inf"),
    float("-inf"),
    0.0,
    -0.0,
    -1.5,
    1e-320,
    1e-30,
    0.5,
    1e30,
    1e308,
)

odd_text = st.lists(st.sampled_from([*_ODD, "a", "r", " ", "../", "x" * 300, "."]), max_size=5).map(
    "".join
)
argument = st.lists(
    st.sampled_from(
        [
            *_ARGUMENT_ODD,
            "a",
            "tiny",
            " ",
            "../",
            "~",
            "x" * 300,
            ".",
            ":",
            "=",
            "-",
            "1",
            ",",
            "://",
        ]
    ),
    max_size=4,
).map("".join)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 200),
    st.sampled_from([*_HUGE, *(-n for n in _HUGE)]),
    st.sampled_from(_REALS),
    st.sampled_from(
        [
            "",
            "log",
            "fixed",
            "learnable",
            "auto",
            "position_adaptive",
            "global",
            "q_proj",
            "1e-3",
            "2024-01-01",
        ]
    ),
    odd_text,
)
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(odd_text, st.integers(), st.booleans()), inner, max_size=3),
    ),
    max_leaves=8,
)
_numbers = st.one_of(st.integers(-2, 200), st.sampled_from(_HUGE), st.sampled_from(_REALS))
_fields = st.sampled_from(sorted(ADAPTER_FIELDS | TRAINING_FIELDS))
_sound: dict[str, Any] = {
    "r": [1, 8],
    "landmarks": [True, False],
    "landmark_design": ["global", "position_adaptive", "per_layer", "attention"],
    "landmark_bucketing": ["fixed", "learnable"],
    "num_landmarks": [0, 4, 9],
    "num_buckets": [2, 16, 128, 129],
    "bucket_spacing": ["log", "linear"],
    "share_landmarks": [False, True],
    "share_gates": [False, True],
    "replication_noncausal_pooling": [False, True],
    "shifted_sparse_attention": [False, True],
    "attention_group": [None, 2, 16, 64, 65],
    "boundary_init": ["log", "fixed", "random"],
    "boundary_warmup": [0.0, 0.5],
    "target_modules": [["q_proj"], ["q_proj", "v_proj"], ["all-linear"], None],
    "learning_rate": [1e-4, 1e-3],
    "temperature": [0.01, 0.1],
}


@st.composite
def near_valid_spaces(draw: st.DrawFn) -> dict[str, Any]:
    """Draw spaces whose fields are valid one by one, but perhaps not together."""
    space: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(_sound)), unique=True, max_size=6)):
        # A copy, because a later change may break it.
        options = copy.deepcopy(draw(st.permutations(_sound[name]))[: draw(st.integers(1, 4))])
        declared: dict[str, Any] = {"choice": options}
        if name in ("num_landmarks", "num_buckets", "learning_rate", "temperature") and draw(
            st.booleans()
        ):
            low, high = min(options), max(options)
            declared = {
                "low": low,
                "high": high,
                **({"log": True} if low > 0 and draw(st.booleans()) else {}),
            }
        if space and draw(st.integers(0, 2)) == 0:
            other = draw(st.sampled_from(sorted(space)))
            values = space[other].get("choice", [space[other].get("low")])
            declared["when"] = {other: draw(st.sampled_from(values))}
        space[name] = declared
    return space


spaces = st.one_of(
    near_valid_spaces(),
    st.dictionaries(
        _fields,
        st.one_of(
            st.fixed_dictionaries(
                {"low": _numbers, "high": _numbers}, optional={"log": st.booleans()}
            ),
            st.fixed_dictionaries({"choice": st.lists(scalars, max_size=4)}),
            st.fixed_dictionaries({"choice": st.lists(st.lists(scalars, max_size=2), max_size=3)}),
            scalars,
        ),
        max_size=3,
    ),
)


def _paths(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        values.items()
        if isinstance(values, dict)
        else enumerate(values)
        if isinstance(values, list)
        else ()
    )
    return [
        *([path] if path else []),
        *(p for key, value in inner for p in _paths(value, (*path, key))),
    ]


@st.composite
def studies(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the shipped study with up to three changes: another value, no value, or a new name."""
    values = json.loads(json.dumps(STUDY))
    if draw(st.booleans()):
        arm = draw(st.sampled_from(sorted(values["arms"])))
        values["arms"][arm]["space"] = draw(spaces)
    for _ in range(draw(st.integers(0, 3))):
        *parents, last = draw(st.sampled_from(_paths(values)))
        target = values
        for key in parents:
            target = target[key]
        kind = draw(st.integers(0, 5))
        if kind == 0:
            del target[last]
        elif kind == 1 and isinstance(target, dict):
            target[draw(st.one_of(odd_text, _fields, st.integers()))] = draw(junk)
        elif kind == 2 and isinstance(target[last], dict | list):
            target[last] = draw(spaces)
        else:
            target[last] = draw(junk)
    return copy.deepcopy(values)


SNIPPETS = (
    "trials: 3\ntrials: 4\n",
    "defaults: {r: 4, r: 8}\n",
    "a: &a [*a]\n",
    "defaults: &a {r: *a}\n",
    "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{c}: &{c} [{', '.join([f'*{b}'] * 9)}]\n"
        for b, c in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "base: &b {r: 4}\ndefaults:\n  <<: *b\n",
    "defaults: &b {r: 4}\narms: {baseline: {config: *b}}\n",
    "<<: 3\n",
    "subject: !!python/object/apply:os.system ['true']\n",
    "subject: !!binary aGVsbG8=\n",
    "subject: !!binary '%'\n",
    "defaults: !!set {r, lora_alpha}\n",
    "defaults: !!omap [r: 4]\n",
    "subject: !!timestamp 2001-99-99\n",
    "seed: !!int x\n",
    "seed: !!float x\n",
    "seed: 0x" + "f" * 5000 + "\n",
    "seed: " + "9" * 5000 + "\n",
    "seed: 0b_\n",
    "seed: 1:30\n",
    "seed: 1_000\n",
    "seed: 010\n",
    "subject: 2024-01-01\n",
    "subject: '2024-01-01'\n",
    "name: 1e5\n",
    "name: '1e5'\n",
    'subject: "\\ud800"\n',
    'data: "a\\0b"\n',
    "text_column: '1e3'\n",
    "model: no\n",
    "trials: yes\n",
    "? {a: 1}\n: 2\n",
    "? [1]\n: 2\n",
    "=: =\n",
    "--- 1\n--- 2\n",
    "%YAML 9.9\n---\ntrials: 3\n",
    "\ttrials: 3\n",
    "trials: 3\r\nseeds: 2\r\n",
    "\ufefftrials: 3\n",
    "{" * 400,
    "[" * 300 + "]" * 300,
    "a: " + "{a: " * 900 + "1" + "}" * 900,
    "defaults: " + "[" * 200 + "]" * 200 + "\n",
    "arms: {fixed: null}\n",
    "arms: {fixed: {config: null, space: null}}\n",
    "comparisons: [[fixed, baseline], [fixed, baseline]]\n",
    "comparisons: [[[], {}]]\n",
)


def _dump(values: Any) -> str:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _stays(path: str) -> bool:
    """Return whether a path stays in the test's folder, because a whole home takes long to read."""
    return "~" not in path and ".." not in path


_PORTS = ("", ":1", ":²", ":" + "9" * 30)
_OPTIONS = {
    "--name": st.one_of(
        argument, st.sampled_from(["a/b", "学" * 81, "e\u0301", "nul\u200bl", "..", "--"])
    ),
    "--model": st.one_of(
        argument, st.sampled_from(["~nobody-here/x", "a//b", "a:b", "x/y/z", "tinny", "--"])
    ),
    "--data": st.one_of(
        argument.filter(_stays),
        st.sampled_from(["~nobody-here/x", "text", "webdataset", "a:", "a/b:c:d", "."]),
    ),
    "--storage": st.one_of(argument.filter(_stays), st.sampled_from(["/proc/x", "/dev/null/x"])),
    "--tracking-uri": st.one_of(
        argument, st.sampled_from(["http://[", "https://:9", "sqlite:", "sqlite:///no/x", "s3://x"])
    ),
    "--address": st.tuples(argument, st.sampled_from(_PORTS))
    .map("".join)
    .filter(lambda address: address != "auto"),
    "--text-column": argument,
    "--config": argument,
    "--budget": st.one_of(argument, st.sampled_from(["quick", "extended", "Full"])),
    **dict.fromkeys(
        ("--seats", "--trials", "--seeds", "--seed", "--seed-list", "--block-size"),
        st.one_of(
            argument,
            st.sampled_from(
                ["0", "-1", "1", "2", "1e3", "nan", "9" * 30, "9" * 5000, "\u0661", str(2**63 - 1)]
            ),
        ),
    ),
}


@st.composite
def options(draw: st.DrawFn) -> list[str]:
    """Draw options of `run`, each with a valid or an invalid value."""
    names = draw(st.lists(st.sampled_from(sorted(_OPTIONS)), unique=True, min_size=1, max_size=3))
    return [f"{name}={draw(_OPTIONS[name])}" for name in names] + [
        f"--set={a}" for a in draw(st.lists(assignments, max_size=1))
    ]


config_files = st.one_of(
    studies().map(_dump).map(lambda text: text.encode(errors="surrogateescape")),
    st.dictionaries(st.one_of(st.sampled_from(sorted(STUDY)), odd_text), junk, max_size=4)
    .map(_dump)
    .map(lambda text: text.encode(errors="surrogateescape")),
    st.lists(st.sampled_from(SNIPPETS), min_size=1, max_size=2).map(
        lambda parts: "".join(parts).encode()
    ),
    st.binary(max_size=60),
)

_NAMES = "trials seed name defaults arms fixed learnable new config space num_buckets r temperature"
_NAMES += " boundary_warmup 0 target_modules choice low high log when comparisons"
_segments = st.sampled_from([*_NAMES.split(), "", "x" * 200])
_good_paths = st.sampled_from(
    [".".join(p) for p in _paths(STUDY) if all(isinstance(k, str) for k in p)]
)
_values = st.one_of(
    junk.map(
        lambda value: yaml.safe_dump(
            value, default_flow_style=True, allow_unicode=True
        ).removesuffix("\n...\n")
    ),
    st.sampled_from([s.strip() for s in SNIPPETS]),
    argument,
)
assignments = st.one_of(
    st.tuples(st.one_of(_good_paths, st.lists(_segments, max_size=5).map(".".join)), _values).map(
        "=".join
    ),
    argument,
).map(lambda text: text.replace("\0", ""))
