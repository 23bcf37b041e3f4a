"""The options of a benchmark, their checks, and the plan that follows from them on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from hylorada import (
    HyLoRADAConfig,
    InputError,
    field_problems,
    inspect_base,
    load_text,
    load_tokenizer,
    nearest,
)
from hylorada.runtime.cores import available_cores
from studies.bench.shapes import SHAPES, shape_config
from studies.files.paths import file_problem

Part = Literal["plain", "processes", "packs", "designs", "memory", "report", "driver"]
PARTS: tuple[Part, ...] = get_args(Part)
_RAY_PARTS = ("processes", "report")
_DTYPES = ("float32", "bfloat16", "float64")
_AT_LEAST = {
    "block_size": 2, "batch_size": 1, "max_pack": 1, "steps": 1, "repeats": 1, "processes": 1,
    "trials": 1, "search_steps": 1,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of ``hylorada bench``.

    An option is None if its default depends on the machine or on another option.

    Attributes:
        model: the base; None means ``tiny`` unless ``shape`` is given.
        shape: shape of a known base, used with random weights instead of ``model``.
        data: the text; None means ``pydocs``, or random tokens with ``shape``.
        block_size: T, tokens per block.
        batch_size: blocks per trial-step.
        r: LoRA rank.
        ranks: ranks such as ``4,8,16``, to compare a pack that mixes them with packs of one rank
            each; None leaves these rows out.
        packs: pack sizes such as ``1,2,4``; None means the powers of two up to ``max_pack``.
        max_pack: largest pack size.
        steps: optimizer steps of every trial in one measurement.
        repeats: number of measurements of every row.
        dtype: data type of the base.
        gradient_checkpointing: whether the packs' backward passes recompute decoder layers.
        parts: rows to measure, such as ``plain,packs``; None means all.
        processes: number of processes that share the device in the row of processes.
        ray: whether to measure rows that need Ray.
        search: whether to time whole searches from end to end too.
        trials: number of trials of such a search.
        search_steps: optimizer steps of each of its trials.
        profile: file for the profile of one step of the largest pack.
    """

    model: str | None = None
    shape: str | None = None
    data: str | None = None
    block_size: int | None = None
    batch_size: int | None = None
    r: int = 8
    ranks: str | None = None
    packs: str | None = None
    max_pack: int | None = None
    steps: int = 20
    repeats: int = 5
    dtype: str | None = None
    gradient_checkpointing: bool = False
    parts: str | None = None
    processes: int | None = None
    ray: bool = True
    search: bool = False
    trials: int = 24
    search_steps: int = 48
    profile: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The setting of each trial, equal in all rows; plain values that can be sent to processes.

    Attributes:
        base: name or folder for :func:`hylorada.load_base`; empty until random weights are on disk.
        shape: name of the random weights' shape, or None.
        data: name of the text; ``random`` for random tokens.
        block_size: T, tokens per block.
        batch_size: blocks per trial-step.
        r: LoRA rank.
        dtype: data type of the base.
        device: ``cuda`` or ``cpu``.
        steps: optimizer steps of every trial in one measurement.
        gradient_checkpointing: whether the packs' backward passes recompute decoder layers.
        ranks: ranks of trials 0, 1, 2, ..., again from the first after the last; empty if all
            trials have rank ``r``.
    """

    base: str
    shape: str | None
    data: str
    block_size: int
    batch_size: int
    r: int
    dtype: str
    device: str
    steps: int
    gradient_checkpointing: bool = False
    ranks: tuple[int, ...] = ()

    def rank_of(self, trial: int) -> int:
        """Return the LoRA rank of a trial."""
        return self.ranks[trial % len(self.ranks)] if self.ranks else self.r

    @property
    def tokens(self) -> int:
        """Number of tokens of one trial-step."""
        return self.block_size * self.batch_size


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Checked options: the setting, and the parts to measure with it."""

    setting: Setting
    parts: tuple[Part, ...]
    packs: tuple[int, ...]
    ranks: tuple[int, ...]
    repeats: int
    processes: int
    search: bool
    trials: int
    search_steps: int
    profile: Path | None


def check(options: BenchOptions) -> Plan:
    """Check everything that can be checked before any compute, and return the plan.

    Raises:
        InputError: there are problems; all are listed.
    """
    problems = _number_problems(options)
    cuda = torch.cuda.is_available()
    dtype = options.dtype or ("bfloat16" if cuda else "float32")
    if dtype not in _DTYPES:
        problems.append(f"dtype {dtype!r} is unknown; {nearest(dtype, _DTYPES)}")
    # These sizes train in reasonable time; on a GPU they are a typical fine-tuning batch.
    block_size = options.block_size or (512 if cuda else 128)
    batch_size = options.batch_size or (4 if cuda else 2)
    base, data = _inputs(options, block_size, problems)
    packs = _packs(options, cuda, problems)
    parts = _parts(options, problems)
    ranks = _ranks(options, packs, parts, problems)
    if options.profile is not None and (problem := file_problem("profile", options.profile)):
        problems.append(problem)
    if problems:
        raise InputError(problems)
    setting = Setting(
        base=base,
        shape=options.shape,
        data=data,
        block_size=block_size,
        batch_size=batch_size,
        r=options.r,
        dtype=dtype,
        device="cuda" if cuda else "cpu",
        steps=options.steps,
        gradient_checkpointing=options.gradient_checkpointing,
    )
    return Plan(
        setting=setting,
        parts=parts,
        packs=packs,
        ranks=ranks,
        repeats=options.repeats,
        processes=options.processes or (8 if cuda else available_cores()),
        search=options.search,
        trials=options.trials,
        search_steps=options.search_steps,
        profile=options.profile,
    )


def _number_problems(options: BenchOptions) -> list[str]:
    given = {name: getattr(options, name) for name in _AT_LEAST}
    problems = [
        f"{n} must be at least {_AT_LEAST[n]}, got {v}"
        for n, v in given.items()
        if _below(v, _AT_LEAST[n])
    ]
    return problems + field_problems(HyLoRADAConfig, {"r": options.r})


def _below(value: int | None, low: int) -> bool:
    return value is not None and value < low


def _inputs(options: BenchOptions, block_size: int, problems: list[str]) -> tuple[str, str]:
    """Check base and text and return their names; a shape's base has no name yet."""
    if options.shape is None:
        model, data = options.model or "tiny", options.data or "pydocs"
        tokenizer = None
        try:
            limit = inspect_base(model).max_positions
            if limit and block_size > limit:
                problems.append(f"block_size {block_size} exceeds model limit {limit} ({model})")
            tokenizer = load_tokenizer(model)
        except InputError as error:
            problems += error.problems
        try:
            load_text(data, tokenizer=tokenizer)
        except InputError as error:
            problems += error.problems
        return model, data
    if options.model is not None:
        problems.append(
            f"model {options.model!r} and shape {options.shape!r} can't be given together"
        )
    if options.data is not None:
        problems.append(
            f"data {options.data!r} can't be used with shape: random weights get random tokens"
        )
    if options.shape not in SHAPES:
        problems.append(f"shape {options.shape!r} is unknown; {nearest(options.shape, SHAPES)}")
    elif block_size > (limit := int(shape_config(options.shape).max_position_embeddings)):
        problems.append(f"block_size {block_size} exceeds model limit {limit} ({options.shape})")
    return "", "random"


def _packs(options: BenchOptions, cuda: bool, problems: list[str]) -> tuple[int, ...]:
    if options.packs is None:
        limit = options.max_pack or (64 if cuda else 8)
        return tuple(1 << i for i in range(limit.bit_length()) if 1 << i <= limit)
    try:
        sizes = sorted({int(size) for size in options.packs.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        problems.append(f"packs must be sizes such as 1,2,4, got {options.packs!r}")
        return ()
    fitting = tuple(k for k in sizes if options.max_pack is None or k <= options.max_pack)
    if not fitting:
        problems.append(f"packs {options.packs!r}: none is at most max_pack {options.max_pack}")
    return fitting


def _ranks(
    options: BenchOptions, packs: Sequence[int], parts: Sequence[Part], problems: list[str]
) -> tuple[int, ...]:
    if options.ranks is None:
        return ()
    try:
        ranks = tuple(sorted({int(rank) for rank in options.ranks.split(",")}))
    except ValueError:
        ranks = ()
    if len(ranks) < 2:
        problems.append(f"ranks must be two or more, such as 4,8,16, got {options.ranks!r}")
        return ()
    for rank in ranks:
        problems += [f"ranks: {p}" for p in field_problems(HyLoRADAConfig, {"r": rank})]
    if "packs" not in parts:
        problems.append("ranks are compared in packs; add packs to the rows")
    if packs and max(packs) < len(ranks):
        problems.append(
            f"ranks: a pack of {max(packs)} can't mix {len(ranks)} ranks; measure a larger pack"
        )
    return ranks


def _parts(options: BenchOptions, problems: list[str]) -> tuple[Part, ...]:
    names: Sequence[str] = PARTS if options.parts is None else options.parts.split(",")
    problems += [f"rows: unknown {n!r}; {nearest(n, PARTS)}" for n in names if n not in PARTS]
    if not options.ray and options.search:
        problems.append("search needs processes; leave out --no-processes")
    return tuple(p for p in PARTS if p in names and (options.ray or p not in _RAY_PARTS))
