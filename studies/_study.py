"""What a study is: arms, spaces, model, text, budget and how the winners are confirmed."""

import copy
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from hylorada import HyLoRADAConfig, InputError, TrainingConfig, field_problems, nearest

from ._space import Space

ADAPTER_FIELDS = {f.name for f in dataclasses.fields(HyLoRADAConfig)}
TRAINING_FIELDS = {f.name for f in dataclasses.fields(TrainingConfig)}
_SET_BY_STUDY = {"max_positions": "it follows block_size"}


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
        model: base: ``tiny``, ``smollm2-135m``, a hub id or a folder.
        data: text: ``pydocs``, a hub ``name:config``, a folder or a file.
        text_column: column of a table or hub data set; None finds it.
        block_size: T, tokens a block.
        dtype: of the base: float32, bfloat16 or float64.
        trials: search trials of each arm.
        eval_every: optimizer steps between reports.
        eval_blocks: validation blocks at each report; None takes all.
        test_blocks: test blocks of the verdict; None takes all.
        grace_steps: ASHA's first rung in optimizer steps; 0 turns ASHA off.
        reduction_factor: ASHA's eta: of each rung's trials the best 1/eta go on.
        seeds: paired seeds of the confirm stage.
        seed: of the whole study.
        defaults: adapter and training fields that all arms share.
        arms: by name.
        comparisons: (arm, reference) pairs of the verdict, the main one first.
    """

    definition: str
    name: str
    model: str = "tiny"
    data: str = "pydocs"
    text_column: str | None = None
    block_size: int = 128
    dtype: str = "float32"
    trials: int = 8
    eval_every: int = 25
    eval_blocks: int | None = None
    test_blocks: int | None = None
    grace_steps: int = 25
    reduction_factor: int = 2
    seeds: int = 5
    seed: int = 0
    defaults: Mapping[str, Any] = field(default_factory=dict)
    arms: Mapping[str, Arm] = field(default_factory=dict)
    comparisons: tuple[tuple[str, str], ...] = ()

    def configs(self, arm: str, params: Mapping[str, Any]) -> tuple[HyLoRADAConfig, TrainingConfig]:
        """The adapter and training of one proposal: shared defaults, then the arm's own, then the proposed values.

        Raises:
            InputError: values that don't fit together.
        """
        values = {**self.defaults, **self.arms[arm].config, **params}
        adapter = {k: v for k, v in values.items() if k in ADAPTER_FIELDS}
        training = {k: v for k, v in values.items() if k in TRAINING_FIELDS}
        return (
            HyLoRADAConfig.from_dict({**adapter, "max_positions": self.block_size}),
            TrainingConfig.from_dict(training),
        )

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
        pairs = [list(p) for p in self.comparisons]
        return {**values, "defaults": dict(self.defaults), "arms": arms, "comparisons": pairs}

    def fingerprint(self) -> str:
        """Changes with anything that changes results (not with the number of trials or seeds, which may grow)."""
        values = {k: v for k, v in self.to_dict().items() if k not in ("trials", "seeds", "name")}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Study":
        """Build and check a study.

        Raises:
            InputError: every problem found: unknown fields, values out of range, arms whose spaces don't fit.
        """
        problems = field_problems(_Plain, {k: v for k, v in values.items() if k in _PLAIN})
        known = {f.name for f in dataclasses.fields(cls)}
        problems += [f"unknown field {k!r}; {nearest(k, known)}" for k in values if k not in known]
        problems += _field_problems("defaults", values.get("defaults", {}))
        arms = {}
        for name, arm in values.get("arms", {}).items():
            try:
                arms[name] = _parse_arm(name, arm)
            except InputError as error:
                problems += error.problems
        pairs = tuple((str(a), str(b)) for a, b in values.get("comparisons", ()))
        problems += [f"comparisons: unknown arm {x!r}; {nearest(x, arms)}" for p in pairs for x in p if x not in arms]
        if problems:
            raise InputError(problems)
        study = cls(**{**values, "arms": arms, "comparisons": pairs})
        if problems := _budget_problems(study) + _arm_problems(study):
            raise InputError(problems)
        return study


@dataclass
class _Plain:
    """Types of the plain fields, for :func:`field_problems`."""

    definition: str
    name: str
    model: str
    data: str
    text_column: str | None
    block_size: int
    dtype: str
    trials: int
    eval_every: int
    eval_blocks: int | None
    test_blocks: int | None
    grace_steps: int
    reduction_factor: int
    seeds: int
    seed: int


_PLAIN = {f.name for f in dataclasses.fields(_Plain)}
_AT_LEAST = {
    "block_size": 2,
    "trials": 1,
    "eval_every": 1,
    "eval_blocks": 2,
    "test_blocks": 2,
    "grace_steps": 0,
    "reduction_factor": 2,
    "seeds": 1,
    "seed": 0,
}


def _field_problems(where: str, values: Any) -> list[str]:
    """Fields of adapter and training with their values checked one by one."""
    if not isinstance(values, Mapping):
        return [f"{where} must map fields to values, got {values!r}"]
    problems = []
    for name, value in values.items():
        owner = HyLoRADAConfig if name in ADAPTER_FIELDS else TrainingConfig
        if name in _SET_BY_STUDY:
            problems.append(f"{where}.{name} can't be set: {_SET_BY_STUDY[name]}")
        elif name not in ADAPTER_FIELDS | TRAINING_FIELDS:
            problems.append(f"{where}: unknown field {name!r}; {nearest(name, ADAPTER_FIELDS | TRAINING_FIELDS)}")
        else:
            problems += [f"{where}.{p}" for p in field_problems(owner, {name: value})]
    return problems


def _parse_arm(name: str, declared: Any) -> Arm:
    if not isinstance(declared, Mapping) or set(declared) - {"config", "space"}:
        raise InputError(f"arms.{name} must hold config and space, got {declared!r}")
    problems = _field_problems(f"arms.{name}.config", declared.get("config", {}))
    space = Space({})
    try:
        space = Space.from_dict(declared.get("space", {}))
    except InputError as error:
        problems += [f"arms.{name}.{p}" for p in error.problems]
    for parameter, declared_values in space.parameters.items():
        for value in declared_values.values.examples():
            problems += _field_problems(f"arms.{name}.space", {parameter: value})
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return Arm(config=declared.get("config", {}), space=space)


def _budget_problems(study: Study) -> list[str]:
    problems = [
        f"{name} must be at least {low}, got {value}"
        for name, low in _AT_LEAST.items()
        if (value := getattr(study, name)) is not None and value < low
    ]
    if study.seed >= 2**63:
        problems.append(f"seed must be below 2^63, got {study.seed}")
    if study.dtype not in ("float32", "bfloat16", "float64"):
        problems.append(f"dtype {study.dtype!r} is unknown; {nearest(study.dtype, ('float32', 'bfloat16', 'float64'))}")
    if not problems and study.grace_steps:
        late = [r for r in study.rungs() if r % study.eval_every]
        if late:
            problems.append(
                f"ASHA's rungs {list(study.rungs())} must be multiples of eval_every {study.eval_every}; "
                "change grace_steps, reduction_factor or eval_every"
            )
        if study.grace_steps > study.max_steps:
            problems.append(f"grace_steps {study.grace_steps} exceeds max_steps {study.max_steps}")
    return problems


def _arm_problems(study: Study) -> list[str]:
    """Each arm's configuration at the ends of each searched parameter."""
    problems = [] if study.arms else ["arms must name at least one arm"]
    for name, arm in study.arms.items():
        if "max_steps" in arm.config or "max_steps" in arm.space.parameters:
            problems.append(f"arms.{name}: max_steps is the same for all arms (equal budgets); set defaults.max_steps")
            continue
        for parameter, declared in arm.space.parameters.items():
            extra = dict([declared.when]) if declared.when else {}
            for value in declared.values.examples():
                try:
                    study.configs(name, {**extra, parameter: value})
                except InputError as error:
                    problems += [f"arms.{name}: {p}" for p in error.problems]
        try:
            study.configs(name, {})
        except InputError as error:
            problems += [f"arms.{name}: {p}" for p in error.problems]
    return list(dict.fromkeys(problems))


def override(values: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Apply ``a.b=value`` assignments (values in YAML) to a study's plain values.

    Raises:
        InputError: an assignment without ``=``, or a path that leads nowhere, with the nearest name.
    """
    result = copy.deepcopy(dict(values))
    problems = []
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        try:
            if not separator:
                raise InputError(f"--set {assignment}: write field=value")
            _assign(result, path.strip(), _parse_value(path, text))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return result


def _parse_value(path: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"--set {path}: {text!r} is not a YAML value") from error
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as text
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _assign(values: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    target: Any = values
    for depth, key in enumerate(parents):
        if not isinstance(target, dict) or key not in target:
            where = ".".join(parents[:depth]) or "the study"
            raise InputError(f"--set {path}: {where} has no {key!r}; {nearest(key, _keys(target))}")
        target = target[key]
    open_ended = bool(parents) and parents[-1] in ("defaults", "config", "space")
    allowed = ADAPTER_FIELDS | TRAINING_FIELDS if open_ended else _keys(target)
    if not isinstance(target, dict) or last not in allowed:
        raise InputError(f"--set {path}: unknown {last!r}; {nearest(last, allowed)}")
    target[last] = value


def _keys(target: Any) -> set[str]:
    return (
        {str(k) for k in target} | ({"log", "when"} if "low" in target else set())
        if isinstance(target, dict)
        else set()
    )
