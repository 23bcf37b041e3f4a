"""What a study is: arms, spaces, model, text, budget and how the winners are confirmed."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hylorada import HyLoRADAConfig, InputError, TrainingConfig, nearest
from studies.files.paths import without_folder
from studies.spec.arms import (
    ADAPTER_FIELDS,
    TRAINING_FIELDS,
    Arm,
    field_problems_of,
    parse_arms,
    parse_common,
)
from studies.spec.plain_fields import (
    comparison_problems,
    look_problems,
    plain_problems,
    profile_problems,
)
from studies.spec.space import Space

GROWING = ("trials", "searches", "seeds")  # what a study may be extended by
_STRUCTURE = (
    *("landmarks", "landmark_design", "landmark_bucketing", "share_landmarks"),
    *("use_dora", "position_bias", "target_modules"),
)
_MOST_REPORTS = 100_000


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
            HyLoRADAConfig.from_dict({**adapter, "max_positions": self.block_size}).resolved(),
            TrainingConfig.from_dict(training),
        )

    def start(self, arm: str) -> dict[str, Any]:
        """The shared defaults as the arm's first point, as Optuna takes it."""
        return self.labels(arm, self.fields(arm))

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
        return dict(
            self.common.first(
                {**HyLoRADAConfig().to_dict(), **TrainingConfig().to_dict(), **self.defaults}
            )
        )

    def point(self, arm: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a whole point of an arm's space: these values, and the defaults where they are silent."""
        return dict(self.space(arm).first({**self.fields(arm), **values}))

    def firsts(self, arm: str) -> list[dict[str, Any]]:
        """The same as whole points within the arm's space, one for every structure of adapter that it can propose."""
        space, points = self.space(arm), []
        for values in space.combinations(_STRUCTURE):
            point = space.first(
                {**self.fields(arm), **{k: v for k, v in values.items() if k in _STRUCTURE}}
            )
            if point not in points:
                points.append(point)
        return points

    def fields(self, arm: str) -> dict[str, Any]:
        """Return the values that hold for an arm before anything is searched: library, study, then its own."""
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
        arms = {
            name: {"config": dict(a.config), "space": a.space.to_dict()}
            for name, a in self.arms.items()
        }
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
        for key in (
            "model",
            "data",
        ):  # the same wherever it lies; its own fingerprint says what is in it
            values[key] = without_folder(values[key])
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Study":
        """Build and check a study.

        Raises:
            InputError: every problem found: unknown fields, values out of range, arms whose spaces don't fit.
        """
        problems, wrong = plain_problems(values)
        known = {f.name for f in dataclasses.fields(cls)}
        problems += [
            f"unknown field {k!r}; {nearest(str(k), known)}" for k in values if k not in known
        ]
        defaults = values.get("defaults", {})
        found, wrong_defaults = field_problems_of("defaults", defaults)
        problems += found
        if (
            not {"grace_steps", "reduction_factor", "eval_every"} & wrong
            and not {"max_steps", "*"} & wrong_defaults
        ):
            names = ("grace_steps", "reduction_factor", "eval_every", "defaults")
            problems += _rung_problems(
                cls(definition="", name="", **{n: values[n] for n in names if n in values})
            )
        block_size = None if "block_size" in wrong else values.get("block_size", cls.block_size)
        shared = {} if "*" in wrong_defaults else {**defaults, "max_positions": block_size}
        declared = values.get("arms", {})
        if not wrong_defaults:
            defaults, declared = _decided(defaults, declared)
            shared = {**defaults, "max_positions": block_size}
        common, found = parse_common(values.get("common", {}))
        problems += found
        arms, found = parse_arms(declared, shared, wrong_defaults, common)
        problems += found
        problems += profile_problems(values.get("profile", [1.0])) + look_problems(
            values.get("looks", [])
        )
        pairs = values.get("comparisons", ())
        problems += comparison_problems(pairs, declared)
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
            deciding = (
                "landmarks",
                "num_landmarks",
                "landmark_design",
                "landmark_bucketing",
                "bucketing_study",
            )
            adapter = HyLoRADAConfig.from_dict({k: fields[k] for k in deciding if k in fields})
            bucketing = adapter.resolved().landmark_bucketing
            arm = {**arm, "config": {**(config or {}), "landmark_bucketing": bucketing}}
        decided[name] = arm
    return {k: v for k, v in defaults.items() if (k, v) != ("landmark_bucketing", "auto")}, decided


def _rung_problems(study: Study) -> list[str]:
    if study.grace_steps > study.max_steps:
        return [
            f"grace_steps {study.grace_steps} exceeds max_steps {study.max_steps}: ASHA has no rung"
        ]
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
