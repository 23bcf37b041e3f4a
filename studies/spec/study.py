"""A study: arms, spaces, model, text, budget and how the winners are confirmed."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hylorada import HyLoRADAConfig, InputError, TrainingConfig, nearest
from hylorada.data.separators import DOCUMENT_SEPARATORS
from studies.files.own_designs import with_sources
from studies.spec.arms import (
    ADAPTER_FIELDS,
    TRAINING_FIELDS,
    Arm,
    decide_bucketing,
    field_problems_of,
    parse_arms,
    parse_common,
)
from studies.spec.fields import (
    about,
    comparison_problems,
    declare,
    field_infos,
    grid_problems,
    look_problems,
    name_problem,
    plain_problems,
    profile_problems,
    seed_list_problems,
)
from studies.spec.fingerprints import fingerprint
from studies.spec.pace import batch_size_problems, open_fields, parse_pace, report_steps, rungs
from studies.spec.proposals.start_entries import Entry, Searched, parse_start
from studies.spec.space import Space

SAMPLERS = ("tpe", "random", "qmc")  # implemented in studies.trials.sampling.sampler
DEVICE_MAPS = ("none", "auto", "balanced", "sequential")  # those of transformers
PRUNERS = ("asha", "none")  # implemented in studies.search.pruners


@dataclass(frozen=True, kw_only=True)
class Study:
    """A complete study.

    Each field is declared here and nowhere else: its name, type and default, and in its metadata
    what it means, its limits, and whether a command-line option sets it. ``hylorada show STUDY``
    prints a study as YAML.

    Example:
        >>> study = Study.from_dict({"definition": "mine", "name": "try", "arms": {"one": {}}})
        >>> study.trials, study.report_steps()[:2]
        (8, (25, 50))
    """

    definition: str = field(metadata=about("study definition that this study comes from"))
    name: str = field(
        metadata=about(
            "name of the study, its folder and its MLflow experiment; default: the definition's",
            option="NAME",
            check=name_problem,
        )
    )
    subject: str = declare(
        "", "what the first comparison tests; the verdict opens with it", free=True
    )
    model: str = declare(
        "tiny", "base model: tiny, smollm2-135m, a hub id or a folder", option="MODEL"
    )
    data: str = declare(
        "pydocs",
        "text: pydocs, pydocstrings, pysource, a hub data set as name:config, a folder, or a file "
        "(.txt .jsonl .parquet .csv .tsv)",
        option="DATA",
    )
    text_column: str | None = declare(
        None,
        "text column of a table or hub data set; default: text, content, or chats (messages)",
        option="COLUMN",
    )
    document_separator: str = declare(
        "auto",
        "what separates rows or files: eos (the end-of-text token: each is a document), "
        "newline (they are lines of one text), none, or auto (decided by what the rows look "
        "like); default: auto",
        option="S",
        one_of=DOCUMENT_SEPARATORS,
    )
    block_size: int = declare(128, "tokens in a block", option="T", at_least=2)
    dtype: str = declare("float32", "dtype of the base", one_of=("float32", "bfloat16", "float64"))
    gradient_checkpointing: bool = declare(
        False, "whether the backward pass recomputes the base's layers: less memory, more time"
    )
    device_map: str = declare(
        "none",
        "how a base too large for a GPU lies on all GPUs of this machine",
        one_of=DEVICE_MAPS,
    )
    trials: int = declare(
        8,
        "search trials of each arm in each search",
        option="N",
        at_least=1,
        at_most=10**6,
        grows=True,
    )
    train_blocks: int | None = declare(
        None, "training blocks, from the beginning of the split; null takes all", at_least=1
    )
    epochs: int | None = declare(
        None,
        "passes of a trial over its training blocks, instead of defaults.max_steps; they become "
        "steps when the text is read",
        at_least=1,
        at_most=10**4,
    )
    eval_every: int | None = declare(
        25, "optimizer steps between reports; null takes an eighth of the steps", at_least=1
    )
    eval_blocks: int | None = declare(
        None, "validation blocks evaluated at each report; null takes all", at_least=2
    )
    test_blocks: int | None = declare(
        None, "test blocks that the verdict rests on; null takes all", at_least=2
    )
    sampler: str = declare(
        "tpe",
        "sampler for the parameters that each arm searches by itself: tpe, random, or qmc (a "
        "scrambled Sobol sequence); unmatched studies draw few points without repetition",
        option="NAME",
        one_of=SAMPLERS,
    )
    start: tuple[Entry, ...] = declare(
        (),
        "configurations that each search tries first, before the defaults; each maps searched "
        "parameters to values, and under `arms` those of single arms; `from: STUDY` stands for the "
        "winners of a study that has been run",
    )
    pruner: str = declare("asha", "what stops trials early: asha, or none", one_of=PRUNERS)
    grace_steps: int | None = declare(
        25,
        "ASHA's first rung in optimizer steps; 0 turns ASHA off, null takes about a quarter of "
        "the steps",
        at_least=0,
    )
    reduction_factor: int = declare(
        2, "ASHA's eta: at each rung the best 1/eta of the trials continue", at_least=2
    )
    common: Space = field(
        default_factory=lambda: Space({}),
        metadata=about(
            "space of the parameters that every arm has; in a matched study, one draw of them "
            "serves one trial of every arm"
        ),
    )
    matched: bool = declare(
        True,
        "whether arms are searched and compared at equal common values; otherwise each arm "
        "searches all of its parameters alone",
    )
    searches: int = declare(
        1,
        "independent repetitions of the search; with 2 or more, the verdict is about the method",
        option="R",
        at_least=1,
        at_most=100,
        grows=True,
    )
    finalists: int = declare(
        1,
        "number of best trials, for each arm and search, that are trained again on fresh "
        "selection seeds",
        at_least=1,
        at_most=100,
    )
    selection_seeds: int = declare(
        1, "seeds of each finalist; the lowest mean validation loss wins", at_least=1, at_most=100
    )
    profile: tuple[float, ...] = declare(
        (1.0,), "factors of the learning rate at which a matched study confirms; 1 is one of them"
    )
    seeds: int = declare(
        5,
        "paired seeds of the confirm stage, in each search",
        option="S",
        at_least=1,
        at_most=10**4,
        grows=True,
    )
    seed_list: tuple[int, ...] = declare(
        (),
        "seeds of the confirm stage by name, such as 42,123,456, instead of `seeds` derived ones",
        option="SEEDS",
    )
    seed: int = declare(
        0, "seed of the whole study: all random numbers derive from it", option="SEED", at_least=0
    )
    margin: float = declare(
        0.5,
        "largest difference in PPL, in %, that counts as no difference that matters",
        at_least=0.0,
        free=True,
    )
    looks: tuple[int, ...] = declare(
        (),
        "numbers of replicates (searches, or seeds of a single search) at which the test split "
        "may be read; all share the 5 % of false verdicts, so each has a lower level; empty "
        "declares none beyond the first",
        free=True,
    )
    criteria: bool = declare(
        False,
        "whether the report holds every comparison against the published criteria of a component "
        "and recommends arms by use",
        free=True,
    )
    spread_test: bool = declare(
        True, "whether test blocks are taken evenly over the split instead of from its start"
    )
    defaults: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=about("adapter and training fields that all arms share"),
    )
    arms: Mapping[str, Arm] = field(
        default_factory=dict, metadata=about("arms by name: what each fixes and searches")
    )
    comparisons: tuple[tuple[str, str], ...] = declare(
        (), "(arm, reference) pairs of the verdict, the main one first"
    )
    designs: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about("source of the files that landmark_design names as FILE.py:CLASS, by name"),
    )
    grid: Mapping[str, tuple[Any, ...]] = field(
        default_factory=dict,
        metadata=about("values of block_size, data or model; a study for each", free=True),
    )

    def configs(self, arm: str, params: Mapping[str, Any]) -> tuple[HyLoRADAConfig, TrainingConfig]:
        """Return the adapter and the training of one proposal.

        The shared defaults come first, then the arm's own fields, then the proposed values.

        Args:
            arm: name of the arm.
            params: what its space has drawn.

        Raises:
            InputError: The values don't fit together.
        """
        values = {**self.defaults, **self.arms[arm].config, **self.space(arm).decoded(params)}
        adapter = {k: v for k, v in values.items() if k in ADAPTER_FIELDS}
        training = {k: v for k, v in values.items() if k in TRAINING_FIELDS}
        return (
            HyLoRADAConfig.from_dict({**adapter, "max_positions": self.block_size}).resolved(),
            TrainingConfig.from_dict(training),
        )

    def labels(self, arm: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given values of an arm as Optuna takes them, to fix them in a trial."""
        return dict(self.space(arm).start(values))

    def space(self, arm: str) -> Space:
        """Return all that is searched for an arm: the common parameters, then its own."""
        return Space({**self.common.parameters, **self.arms[arm].space.parameters})

    @property
    def blocks(self) -> bool:
        """Whether the search runs in matched blocks: one draw of the common values for all arms."""
        return self.matched and bool(self.common.parameters)

    @property
    def factors(self) -> tuple[float, ...]:
        """Factors of the learning rate to confirm at, 1 first; only 1 in an unmatched study."""
        return tuple(sorted(self.profile, key=lambda f: (f != 1, f))) if self.blocks else (1.0,)

    def point(self, arm: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a whole point of an arm's space: these values, and defaults for the others."""
        return dict(self.space(arm).first({**self.fields(arm), **values}))

    def fields(self, arm: str) -> dict[str, Any]:
        """Return an arm's values before the search: the library's, the study's, then its own."""
        fields = {**HyLoRADAConfig().to_dict(), **TrainingConfig().to_dict()}
        return {**fields, **self.defaults, **self.arms[arm].config}

    @property
    def knows_steps(self) -> bool:
        """Whether ``max_steps`` is known; epochs become steps once the text has been read."""
        return self.epochs is None or "max_steps" in self.defaults

    @property
    def max_steps(self) -> int:
        """Optimizer steps of a trial that runs to its end."""
        assert self.knows_steps, "epochs have no steps before the text is read"
        return int(self.defaults.get("max_steps", TrainingConfig().max_steps))

    def rungs(self) -> tuple[int, ...]:
        """Return ASHA's rungs below ``max_steps``, in optimizer steps."""
        first = self.grace_steps if self.pruner == "asha" else 0
        return rungs(first or 0, self.reduction_factor, self.max_steps)

    def report_steps(self) -> tuple[int, ...]:
        """Return the steps after which a trial is evaluated: every ``eval_every`` and the last."""
        assert self.eval_every is not None
        return report_steps(self.eval_every, self.max_steps)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a study file holds them."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        arms = {
            name: {"config": dict(a.config), "space": a.space.to_dict()}
            for name, a in self.arms.items()
        }
        plain = {
            "common": {"space": self.common.to_dict()},
            "profile": list(self.profile),
            "looks": list(self.looks),
            "start": [dict(entry) for entry in self.start],
            "seed_list": list(self.seed_list),
            "defaults": dict(self.defaults),
            "arms": arms,
            "comparisons": [list(p) for p in self.comparisons],
            "designs": dict(self.designs),
            "grid": {axis: list(spanned) for axis, spanned in self.grid.items()},
        }
        return {**values, **plain}

    def fingerprint(self) -> str:
        """Return a digest of all that changes results.

        Counts of trials, searches and seeds, which may grow, are not part of it.
        """
        return fingerprint(self.to_dict(), {*FREE, "name"})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Study":
        """Build and check a study.

        Raises:
            InputError: All problems at once: unknown fields, values out of range, arms whose spaces
                don't fit.
        """
        values, design_problems = with_sources(open_fields(values))
        problems, wrong = plain_problems(cls, values)
        problems += design_problems
        known = field_infos(cls)
        problems += [
            f"unknown field {k!r}; {nearest(str(k), known)}" for k in values if k not in known
        ]
        defaults, declared = values.get("defaults", {}), values.get("arms", {})
        default_problems, wrong_defaults = field_problems_of("defaults", defaults)
        problems += default_problems
        if not wrong & set(_PACE) and not {"max_steps", "*"} & wrong_defaults:
            given = {n: values.get(n, getattr(cls, n)) for n in _PACE}
            filled, pace_problems = parse_pace(defaults.get("max_steps"), **given)
            values, problems = {**values, **filled}, problems + pace_problems
        if not wrong_defaults:
            defaults, declared = decide_bucketing(defaults, declared)
        block_size = None if "block_size" in wrong else values.get("block_size", cls.block_size)
        shared = {} if "*" in wrong_defaults else {**defaults, "max_positions": block_size}
        common, common_problems = parse_common(values.get("common", {}))
        arms, arm_problems = parse_arms(declared, shared, wrong_defaults, common)
        problems += common_problems + arm_problems
        sound = not (common_problems or arm_problems or wrong_defaults or "matched" in wrong)
        searched = Searched(arms, common, values.get("matched", cls.matched), defaults)
        start, start_problems = parse_start(
            values.get("start", cls.start),
            searched if sound else None,
            values.get("trials", cls.trials),
        )
        problems += start_problems
        if values.get("epochs") is not None:
            problems += batch_size_problems(common, arms)
        seed_list = values.get("seed_list", cls.seed_list)
        problems += seed_list_problems(seed_list, values.get("seeds"))
        factors, looks = values.get("profile", cls.profile), values.get("looks", cls.looks)
        pairs, grid = values.get("comparisons", cls.comparisons), values.get("grid", {})
        problems += profile_problems(factors) + look_problems(looks)
        problems += comparison_problems(pairs, declared) + grid_problems(grid)
        if problems:
            raise InputError(list(dict.fromkeys(problems)))
        parsed = {
            "common": common,
            "profile": tuple(float(f) for f in factors),
            "looks": tuple(looks),
            "start": start,
            "seed_list": tuple(seed_list),
            "seeds": len(seed_list) or values.get("seeds", cls.seeds),
            "defaults": defaults,
            "arms": arms,
            "comparisons": tuple((a, b) for a, b in pairs),
            "grid": {axis: tuple(spanned) for axis, spanned in grid.items()},
        }
        return cls(**{**values, **parsed})


_INFOS = field_infos(Study)
GROWING = tuple(name for name, info in _INFOS.items() if info.grows)  # see `hylorada extend`
FREE = tuple(name for name, info in _INFOS.items() if info.grows or info.free)
_PACE = ("grace_steps", "reduction_factor", "eval_every", "epochs")
