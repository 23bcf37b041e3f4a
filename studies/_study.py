"""What a study is: arms, spaces, model, text, budget and how the winners are confirmed."""

import dataclasses
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from hylorada import HyLoRADAConfig, InputError, TrainingConfig, field_problems, nearest
from hylorada._separators import DOCUMENT_SEPARATORS

from ._paths import without_folder
from ._space import Space

ADAPTER_FIELDS = {f.name for f in dataclasses.fields(HyLoRADAConfig)}
TRAINING_FIELDS = {f.name for f in dataclasses.fields(TrainingConfig)}
GROWING = ("trials", "searches", "seeds")  # what a study may be extended by
SET_BY_STUDY = {"max_positions": "it follows block_size"}
_REAL_FIELDS = {n for c in (HyLoRADAConfig, TrainingConfig) for n, hint in get_type_hints(c).items() if hint is float}
_CHECKED_TOGETHER = (
    ("landmarks", "num_landmarks", "landmark_design", "num_buckets"),
    ("landmark_bucketing", "landmark_design"),
    ("share_landmarks", "landmark_design"),
    ("replication_noncausal_pooling", "landmark_design"),
    ("boundary_init", "boundary_warmup"),
)
_STRUCTURE = (
    *("landmarks", "landmark_design", "landmark_bucketing", "share_landmarks"),
    *("use_dora", "position_bias", "target_modules"),
)
_MOST_REPORTS = 100_000
_LONGEST_ARM = 200  # bytes


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A family of configurations that competes on an equal budget.

    Attributes:
        config: fields of the adapter or the training that this arm fixes.
        space: fields that it searches.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    space: Space = field(default_factory=lambda: Space({}))


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study, complete; see ``hylorada show STUDY`` for one as YAML.

    Attributes:
        definition: the study definition it came from.
        name: its own name: folder and MLflow experiment.
        subject: what the first comparison tests, to open the verdict with.
        model: base: ``tiny``, ``smollm2-135m``, a hub id or a folder.
        data: text: ``pydocs``, a hub ``name:config``, a folder or a file.
        text_column: column of a table or hub data set; None finds it.
        document_separator: between documents: auto, eos, newline or none; see :func:`hylorada.load_text`.
        block_size: T, tokens a block.
        dtype: of the base: float32, bfloat16 or float64.
        trials: search trials of each arm.
        eval_every: optimizer steps between reports.
        eval_blocks: validation blocks at each report; None takes all.
        test_blocks: test blocks of the verdict; None takes all.
        grace_steps: ASHA's first rung in optimizer steps; 0 turns ASHA off.
        reduction_factor: ASHA's eta: of each rung's trials the best 1/eta go on.
        common: space of the parameters that every arm has. In a matched study one draw of them serves one trial of
            every arm.
        matched: whether arms are searched and compared at equal common values; else each arm searches all by itself.
        searches: R, independent repetitions of the search; with two or more the verdict speaks of the method.
        finalists: of each arm and search, how many of its best trials are trained again on fresh selection seeds.
        selection_seeds: how many seeds each finalist gets; the lowest mean validation loss wins.
        profile: factors of the learning rate at which a matched study confirms; 1 must be one of them.
        seeds: paired seeds of the confirm stage, for each search.
        seed: of the whole study.
        margin: differences in PPL within this many % count as no difference that matters.
        looks: numbers of replicates (searches, or seeds of a single search) at which the test split may be read.
            All share the 5 %, so each has a lower level; empty declares none beyond the first.
        spread_test: whether test blocks are taken evenly over the split instead of from its start.
        defaults: adapter and training fields that all arms share.
        arms: by name.
        comparisons: (arm, reference) pairs of the verdict, the main one first.
    """

    definition: str
    name: str
    subject: str = ""
    model: str = "tiny"
    data: str = "pydocs"
    text_column: str | None = None
    document_separator: str = "auto"
    block_size: int = 128
    dtype: str = "float32"
    trials: int = 8
    eval_every: int = 25
    eval_blocks: int | None = None
    test_blocks: int | None = None
    grace_steps: int = 25
    reduction_factor: int = 2
    common: Space = field(default_factory=lambda: Space({}))
    matched: bool = True
    searches: int = 1
    finalists: int = 1
    selection_seeds: int = 1
    profile: tuple[float, ...] = (1.0,)
    seeds: int = 5
    seed: int = 0
    margin: float = 0.5
    looks: tuple[int, ...] = ()
    spread_test: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict)
    arms: Mapping[str, Arm] = field(default_factory=dict)
    comparisons: tuple[tuple[str, str], ...] = ()

    def configs(self, arm: str, params: Mapping[str, Any]) -> tuple[HyLoRADAConfig, TrainingConfig]:
        """The adapter and training of one proposal: shared defaults, then the arm's own, then the proposed values.

        Args:
            arm: by name.
            params: what its space has drawn, or :meth:`start`.

        Raises:
            InputError: values that don't fit together.
        """
        values = {**self.defaults, **self.arms[arm].config, **self.space(arm).decoded(params)}
        adapter = {k: v for k, v in values.items() if k in ADAPTER_FIELDS}
        training = {k: v for k, v in values.items() if k in TRAINING_FIELDS}
        return (
            HyLoRADAConfig.from_dict({**adapter, "max_positions": self.block_size}),
            TrainingConfig.from_dict(training),
        )

    def start(self, arm: str) -> dict[str, Any]:
        """The shared defaults as the arm's first point, as Optuna takes it."""
        return self.labels(arm, self._fields(arm))

    def labels(self, arm: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values of an arm's space as Optuna takes them for a trial that is to have them."""
        return dict(self.space(arm).start(values))

    def space(self, arm: str) -> Space:
        """Return all that is searched for an arm: the common parameters, then its own."""
        return Space({**self.common.parameters, **self.arms[arm].space.parameters})

    @property
    def blocks(self) -> bool:
        """Whether the search runs in matched blocks: one draw of the common values, one trial of every arm."""
        return self.matched and bool(self.common.parameters)

    @property
    def factors(self) -> tuple[float, ...]:
        """Factors of the learning rate to confirm at, 1 first; a study that is not matched has 1 alone."""
        return tuple(sorted(self.profile, key=lambda f: (f != 1, f))) if self.blocks else (1.0,)

    def common_start(self) -> dict[str, Any]:
        """Return the shared defaults as a first block of common values."""
        return dict(self.common.first({**HyLoRADAConfig().to_dict(), **TrainingConfig().to_dict(), **self.defaults}))

    def point(self, arm: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a whole point of an arm's space: these values, and the defaults where they are silent."""
        return dict(self.space(arm).first({**self._fields(arm), **values}))

    def firsts(self, arm: str) -> list[dict[str, Any]]:
        """The same as whole points within the arm's space, one for every structure of adapter that it can propose."""
        space, points = self.space(arm), []
        for values in space.combinations(_STRUCTURE):
            point = space.first({**self._fields(arm), **{k: v for k, v in values.items() if k in _STRUCTURE}})
            if point not in points:
                points.append(point)
        return points

    def _fields(self, arm: str) -> dict[str, Any]:
        fields = {**HyLoRADAConfig().to_dict(), **TrainingConfig().to_dict()}
        return {**fields, **self.defaults, **self.arms[arm].config}

    @property
    def max_steps(self) -> int:
        return int(self.defaults.get("max_steps", TrainingConfig().max_steps))

    def rungs(self) -> tuple[int, ...]:
        """ASHA's rungs below ``max_steps``, in optimizer steps."""
        found, rung = [], self.grace_steps
        while rung and rung < self.max_steps:
            found.append(rung)
            rung *= self.reduction_factor
        return tuple(found)

    def report_steps(self) -> tuple[int, ...]:
        """Steps after which a trial is evaluated: every ``eval_every`` and the last."""
        return (*range(self.eval_every, self.max_steps, self.eval_every), self.max_steps)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a study file holds them."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        arms = {name: {"config": dict(a.config), "space": a.space.to_dict()} for name, a in self.arms.items()}
        plain = {
            "common": {"space": self.common.to_dict()},
            "profile": list(self.profile),
            "looks": list(self.looks),
            "defaults": dict(self.defaults),
            "arms": arms,
            "comparisons": [list(p) for p in self.comparisons],
        }
        return {**values, **plain}

    def fingerprint(self) -> str:
        """Return a digest of all that changes results; counts of trials, searches and seeds, which may grow, do not."""
        free = {*GROWING, "name", "subject", "margin", "looks"}
        values = {k: v for k, v in self.to_dict().items() if k not in free}
        if values["document_separator"] in ("auto", "eos"):  # as it was before the field was added
            del values["document_separator"]
        for key in ("model", "data"):  # the same wherever it lies; its own fingerprint says what is in it
            values[key] = without_folder(values[key])
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Study":
        """Build and check a study.

        Raises:
            InputError: every problem found: unknown fields, values out of range, arms whose spaces don't fit.
        """
        problems, wrong = _plain_problems(values)
        known = {f.name for f in dataclasses.fields(cls)}
        problems += [f"unknown field {k!r}; {nearest(str(k), known)}" for k in values if k not in known]
        defaults = values.get("defaults", {})
        found, wrong_defaults = _field_problems("defaults", defaults)
        problems += found
        if not {"grace_steps", "reduction_factor", "eval_every"} & wrong and not {"max_steps", "*"} & wrong_defaults:
            names = ("grace_steps", "reduction_factor", "eval_every", "defaults")
            problems += _rung_problems(cls(definition="", name="", **{n: values[n] for n in names if n in values}))
        block_size = None if "block_size" in wrong else values.get("block_size", cls.block_size)
        shared = {} if "*" in wrong_defaults else {**defaults, "max_positions": block_size}
        declared = values.get("arms", {})
        if not wrong_defaults:
            defaults, declared = _decided(defaults, declared)
            shared = {**defaults, "max_positions": block_size}
        common, found = _parse_common(values.get("common", {}))
        problems += found
        arms, found = _parse_arms(declared, shared, wrong_defaults, common)
        problems += found
        problems += _profile_problems(values.get("profile", [1.0])) + _look_problems(values.get("looks", []))
        pairs = values.get("comparisons", ())
        problems += _comparison_problems(pairs, declared)
        if problems:
            raise InputError(list(dict.fromkeys(problems)))
        parsed = {
            "common": common,
            "profile": tuple(float(f) for f in values.get("profile", [1.0])),
            "looks": tuple(values.get("looks", ())),
            "defaults": defaults,
            "arms": arms,
            "comparisons": tuple((a, b) for a, b in pairs),
        }
        return cls(**{**values, **parsed})


def _decided(defaults: Mapping[str, Any], arms: Any) -> tuple[Mapping[str, Any], Any]:
    """``landmark_bucketing: auto`` of defaults and arms as what it stands for now, so that it is one for all trials.

    Raises:
        InputError: there is no verdict to take.
    """
    if not isinstance(arms, Mapping):
        return defaults, arms
    decided = {}
    for name, arm in arms.items():
        config = arm.get("config") if isinstance(arm, Mapping) else None
        fields = {**defaults, **(config if isinstance(config, Mapping) else {})}
        if isinstance(arm, Mapping) and fields.get("landmark_bucketing") == "auto":
            deciding = ("landmarks", "num_landmarks", "landmark_design", "landmark_bucketing", "bucketing_study")
            found = HyLoRADAConfig.from_dict({k: fields[k] for k in deciding if k in fields}).landmark_bucketing
            arm = {**arm, "config": {**(config or {}), "landmark_bucketing": found}}
        decided[name] = arm
    return {k: v for k, v in defaults.items() if (k, v) != ("landmark_bucketing", "auto")}, decided


@dataclass
class _Plain:
    """Types of the plain fields, for :func:`field_problems`."""

    definition: str
    name: str
    subject: str
    model: str
    data: str
    text_column: str | None
    document_separator: str
    block_size: int
    dtype: str
    trials: int
    eval_every: int
    eval_blocks: int | None
    test_blocks: int | None
    grace_steps: int
    reduction_factor: int
    matched: bool
    searches: int
    finalists: int
    selection_seeds: int
    seeds: int
    seed: int
    margin: float
    spread_test: bool


_PLAIN = {f.name for f in dataclasses.fields(_Plain)}
_AT_LEAST = {
    "block_size": 2,
    "trials": 1,
    "eval_every": 1,
    "eval_blocks": 2,
    "test_blocks": 2,
    "grace_steps": 0,
    "reduction_factor": 2,
    "searches": 1,
    "finalists": 1,
    "selection_seeds": 1,
    "seeds": 1,
    "seed": 0,
    "margin": 0.0,
}
_AT_MOST = {"trials": 10**6, "searches": 100, "finalists": 100, "selection_seeds": 100, "seeds": 10**4}
_AT_MOST_FACTORS, _AT_MOST_LOOKS = 9, 10
_ONE_OF = {"dtype": ("float32", "bfloat16", "float64"), "document_separator": DOCUMENT_SEPARATORS}


def name_problem(what: str, name: Any) -> str | None:
    """Why a name can't be a folder and an MLflow experiment; None where it can."""
    if not isinstance(name, str):
        return f"{what} must be text, got {name!r}"
    odd = [c for c in name if not (c.isalnum() or unicodedata.category(c)[0] == "M" or c in " _-.")]
    if odd or name in (".", "..") or name != name.strip() or not 0 < len(name) <= 100 or len(name.encode()) > 240:
        shown = name if len(name) <= 100 else name[:40] + "…"
        return f"{what} must be 1 to 100 letters, digits, spaces, '_', '-' or '.', and not '.' or '..'; got {shown!r}"
    return None


def _plain_problems(values: Mapping[str, Any]) -> tuple[list[str], set[str]]:
    """Problems of the plain fields, each by itself, and the names of those fields."""
    by_name = {k: _plain_problem(k, values[k]) for k in _PLAIN if k in values}
    by_name |= {k: [f"{k} is missing"] for k in ("definition", "name") if k not in values}
    order = [k for k in (*values, "definition", "name") if by_name.get(k)]
    return [p for k in dict.fromkeys(order) for p in by_name[k]], set(order)


def _plain_problem(name: str, value: Any) -> list[str]:
    if isinstance(value, int) and value >= 2**63:
        return [f"{name} must be below 2^63, got {value}"]
    if problems := field_problems(_Plain, {name: value}):
        return problems
    if name == "name":
        return [p] if (p := name_problem("name", value)) else []
    if name in _ONE_OF and value not in _ONE_OF[name]:
        return [f"{name} {value!r} is unknown; {nearest(value, _ONE_OF[name])}"]
    if isinstance(value, str) and (odd := re.search("[\0\ud800-\udfff]", value)):
        return [f"{name} {value!r} has a character that can't be stored, {odd[0]!r}"]
    if name in _AT_LEAST and value is not None and value < _AT_LEAST[name]:
        return [f"{name} must be at least {_AT_LEAST[name]}, got {value}"]
    if name in _AT_MOST and value > _AT_MOST[name]:
        return [f"{name} must be at most {_AT_MOST[name]}, got {value}"]
    return []


def _field_problems(where: str, values: Any) -> tuple[list[str], set[str]]:
    """Problems of adapter and training fields, each by itself, and the wrong ones' names; ``*`` where all is wrong."""
    if not isinstance(values, Mapping):
        return [f"{where} must map fields to values, got {values!r}"], {"*"}
    by_name = {name: _field_problem(where, name, value) for name, value in values.items()}
    return [p for found in by_name.values() for p in found], {str(n) for n, found in by_name.items() if found}


def _field_problem(where: str, name: Any, value: Any) -> list[str]:
    known = ADAPTER_FIELDS | TRAINING_FIELDS
    if name in SET_BY_STUDY:
        return [f"{where}.{name} can't be set: {SET_BY_STUDY[name]}"]
    if name not in known:
        return [f"{where}: unknown field {name!r}; {nearest(str(name), known - SET_BY_STUDY.keys())}"]
    owner = HyLoRADAConfig if name in ADAPTER_FIELDS else TrainingConfig
    return [f"{where}.{p}" for p in field_problems(owner, {name: value})]


def _rung_problems(study: Study) -> list[str]:
    if study.grace_steps > study.max_steps:
        return [f"grace_steps {study.grace_steps} exceeds max_steps {study.max_steps}: ASHA has no rung"]
    if (reports := study.max_steps // study.eval_every) > _MOST_REPORTS:
        return [
            f"max_steps {study.max_steps} with eval_every {study.eval_every} makes {reports} reports a trial, at most "
            f"{_MOST_REPORTS}; raise eval_every"
        ]
    if any(rung % study.eval_every for rung in study.rungs()):
        return [
            f"ASHA's rungs {list(study.rungs())} must be multiples of eval_every {study.eval_every}; "
            "change grace_steps, reduction_factor or eval_every"
        ]
    return []


def _parse_common(declared: Any) -> tuple[Space, list[str]]:
    """Read the space of the parameters that all arms share; return it and all problems."""
    if not isinstance(declared, Mapping) or set(declared) - {"space"}:
        return Space({}), [f"common must hold space, got {declared!r}"]
    space, problems, _ = _parse_space("common", declared.get("space", {}))
    if "max_steps" in space.parameters:
        problems.append("common.space: max_steps is not searched (equal budgets); set defaults.max_steps")
    return space, problems


def _profile_problems(factors: Any) -> list[str]:
    numbers = (
        [f for f in factors if isinstance(f, int | float) and not isinstance(f, bool)] if _is_list(factors) else []
    )
    if not numbers or len(numbers) != len(factors) or not all(0 < f < math.inf for f in numbers):
        return [f"profile must be a list of positive factors of the learning rate, got {factors!r}"]
    if 1 not in numbers or len(set(numbers)) != len(numbers) or len(numbers) > _AT_MOST_FACTORS:
        return [f"profile must hold 1 and no factor twice, at most {_AT_MOST_FACTORS} in all, got {factors!r}"]
    return []


def _look_problems(looks: Any) -> list[str]:
    whole = _is_list(looks) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 2 for n in looks)
    if not whole or sorted(set(looks)) != list(looks) or len(looks) > _AT_MOST_LOOKS:
        return [f"looks must be at most {_AT_MOST_LOOKS} ascending numbers of replicates from 2, got {looks!r}"]
    return []


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _parse_arms(
    declared: Any, shared: Mapping[str, Any], wrong: set[str], common: Space
) -> tuple[dict[str, Arm], list[str]]:
    """All arms that can be read, and all problems."""
    if not isinstance(declared, Mapping) or not declared:
        return {}, [f"arms must name at least one arm, got {declared!r}"]
    arms: dict[str, Arm] = {}
    problems: list[str] = []
    for name, values in declared.items():
        if problem := _arm_name_problem(name):
            problems.append(problem)
        elif not isinstance(values, Mapping) or set(values) - {"config", "space"}:
            problems.append(f"arms.{name} must hold config and space, got {values!r}")
        else:
            arms[name], found = _parse_arm(name, values, shared, wrong, common)
            problems += found
    return arms, problems


def _arm_name_problem(name: Any) -> str | None:
    """As a study's, but it stands in names of trials, which are longer, and in those of MLflow's metrics."""
    if problem := name_problem("the name of an arm", name):
        return problem
    if len(name.encode()) > _LONGEST_ARM or not re.fullmatch(r"[\w .-]+", name):
        return f"the name of an arm must have at most {_LONGEST_ARM} bytes and no combining characters, got {name!r}"
    return None


def _parse_arm(
    name: str, values: Mapping[str, Any], shared: Mapping[str, Any], wrong: set[str], common: Space
) -> tuple[Arm, list[str]]:
    config = values.get("config", {})
    problems, wrong_here = _field_problems(f"arms.{name}.config", config)
    space, found, wrong_values = _parse_space(f"arms.{name}", values.get("space", {}), common)
    problems += found
    wrong_here |= wrong_values
    if "*" in wrong | wrong_here:
        return Arm(space=space), problems
    if "max_steps" in config or "max_steps" in space.parameters:
        problems.append(f"arms.{name}: max_steps is the same for all arms (equal budgets); set defaults.max_steps")
    for parameter in [p for p in common.parameters if p in space.parameters or p in config]:
        problems.append(f"arms.{name}: {parameter} is in common.space, so no arm sets or searches it by itself")
    arm = Arm(config=config, space=space)
    whole = Space({**common.parameters, **space.parameters})
    return arm, problems + [f"arms.{name}: {p}" for p in _misfits(config, whole, shared, wrong | wrong_here)]


def _parse_space(where: str, declared: Any, earlier: Space | None = None) -> tuple[Space, list[str], set[str]]:
    """Read a space; return it, all problems, and the names of parameters with wrong values (``*``: all)."""
    try:
        space = Space.from_dict(declared, real=_REAL_FIELDS, earlier=earlier)
    except InputError as error:
        return Space({}), [f"{where}.{p}" for p in error.problems], {"*"}
    problems, wrong = [], set()
    for parameter, values in space.parameters.items():
        for value in values.values.examples():
            found, wrong_value = _field_problems(f"{where}.space", {parameter: value})
            problems += found
            wrong |= wrong_value
    return space, problems, wrong


def _misfits(config: Mapping[str, Any], space: Space, shared: Mapping[str, Any], wrong: set[str]) -> list[str]:
    """Values that are right by themselves but not together, in whatever may be proposed."""
    problems: dict[str, None] = {}
    for values in (point for fields in _CHECKED_TOGETHER for point in space.combinations(fields)):
        sound = {k: v for k, v in {**shared, **config, **values}.items() if k not in wrong}
        try:
            HyLoRADAConfig.from_dict({k: v for k, v in sound.items() if k in ADAPTER_FIELDS})
        except InputError as error:
            problems |= dict.fromkeys(p for p in error.problems if not wrong & set(re.findall(r"\w+", p)))
    return list(problems)


def _comparison_problems(pairs: Any, arms: Any) -> list[str]:
    if not isinstance(pairs, list | tuple):
        return [f"comparisons must be a list of pairs [arm, reference], got {pairs!r}"]
    problems = []
    known = [str(a) for a in arms] if isinstance(arms, Mapping) else []
    for i, pair in enumerate(pairs):
        if not isinstance(pair, list | tuple) or len(pair) != 2 or pair[0] == pair[1]:
            problems.append(f"comparisons: each must be a pair of arms [arm, reference], got {pair!r}")
        elif pair in pairs[:i]:
            problems.append(f"comparisons: {pair!r} stands twice")
        elif known:  # without any, that is the problem
            problems += [f"comparisons: unknown arm {a!r}; {nearest(str(a), known)}" for a in pair if a not in known]
    return problems
