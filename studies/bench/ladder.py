"""The benchmark's rows: the plain loop, processes, and packs of growing size, measured in turns."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transformers import PreTrainedModel

from hylorada.runtime.devices import is_out_of_memory
from studies.bench.designs import DESIGNS, LORA
from studies.bench.loops import Loop, PackLoop, PlainLoop, Tokens, bench_base, bench_lanes
from studies.bench.measure import (
    WARM_STEPS,
    Memory,
    cpu_memory,
    gpu_memory,
    matmul_rate,
    release,
    time_steps,
)
from studies.bench.options import Plan, Setting
from studies.bench.result import Kind, Row

Say = Callable[[str], None]
_CHECKED = 8  # trials of a pack compared with their solo runs, spread over its seats


class Workers(Protocol):
    """Processes that each train one plain loop."""

    count: int

    def run(self) -> float:
        """Measure all processes at once, and return the seconds from first start to last end."""

    def peak_bytes(self) -> int:
        """Return the peak memory of all processes together."""


@dataclass
class _Entry:
    """A row that is being measured."""

    name: str
    kind: Kind
    trials: int = 1
    design: str = LORA
    ranks: tuple[int, ...] = ()
    seconds: list[float] = field(default_factory=list)
    peak: int | None = None
    series: dict[int, list[float]] = field(default_factory=dict)


class Ladder:
    """The measurement of rows in turns (a, b, c, a, b, c, ...).

    In this order a drift of the machine's speed affects all rows alike.

    Args:
        plan: what to measure.
        input_ids: [N, T] training blocks.
        say: called with each line of progress.
        workers: the processes of the row of processes; None leaves the row out.
    """

    def __init__(
        self, plan: Plan, input_ids: Tokens, say: Say, workers: Workers | None = None
    ) -> None:
        self.setting: Setting = plan.setting
        self._plan, self._input_ids, self._say, self._workers = plan, input_ids, say, workers
        self.base = bench_base(plan.setting)
        self._lanes = bench_lanes(self.base, plan.setting)
        self._base_bytes = sum(p.numel() * p.element_size() for p in self.base.parameters())
        self._plain_base: PreTrainedModel | None = None
        self._plain: PlainLoop | None = None
        self.memories: dict[int, Memory] = {}
        self.matmul_rates: list[float] = []
        self.notes: list[str] = []
        self.largest = 0  # size of the largest pack that fits
        self.too_large = math.inf  # size of the pack that did not fit

    def run(self) -> list[Row]:
        """Warm up all rows, then measure each of them in every repeat."""
        entries = self._warm_up()
        for repeat in range(self._plan.repeats):
            self._say(
                f"repeat {repeat + 1} of {self._plan.repeats}: {'; '.join(e.name for e in entries)}"
            )
            self._lanes.rest()
            self.matmul_rates.append(matmul_rate(self.setting))
            for entry in entries:
                self._measure(entry)
        solo = self._solo(
            {(k, self._ranked(e.ranks).rank_of(k)) for e in entries for k in _comparable(e)}
        )
        return [self._row(e, solo) for e in entries]

    def loop(self, trials: int, design: str = LORA, ranks: tuple[int, ...] = ()) -> PackLoop:
        """Return a fresh pack of trials 0, 1, ..., K-1, of these ranks in turn."""
        setting = self._ranked(ranks)
        return PackLoop(self._lanes, setting, self._input_ids, range(trials), design)

    def _ranked(self, ranks: tuple[int, ...]) -> Setting:
        return dataclasses.replace(self.setting, ranks=ranks)

    def measure_memory(
        self, trials: int, design: str = LORA, ranks: tuple[int, ...] = ()
    ) -> Memory | None:
        """Measure the memory of a pack; return None if it does not fit."""
        if self.setting.device == "cpu":
            return cpu_memory(self._ranked(ranks), self._input_ids, trials, design)
        try:
            return gpu_memory(lambda: self.loop(trials, design, ranks), self._base_bytes)[1]
        except RuntimeError as error:
            if is_out_of_memory(error):
                self._lanes.max_seats = None  # this limit is only for the pack that did not fit
                return None
            raise

    def _warm_up(self) -> list[_Entry]:
        """Run every row once without a measurement, up to the first pack that is too large.

        This fills compilers and caches and measures memory. The whole round comes before the first
        measurement, because a pack of another size may recompile the layers of all.
        """
        parts, entries = self._plan.parts, []
        matmul_rate(self.setting)
        if "plain" in parts:
            self._say("warming up: the plain loop")
            entries.append(self._warm_plain())
        if self._workers is not None:
            entries.append(
                _Entry(f"{self._workers.count} processes", "processes", self._workers.count)
            )
        packs = self._warm_packs() if "packs" in parts or "designs" in parts else []
        # Designs are compared in the largest pack only.
        entries += packs if "packs" in parts else packs[-1:]
        if "designs" in parts and packs:
            entries += self._warm_fitting(self._designs())
        if self._plan.ranks and packs:
            entries += self._warm_fitting(self._ranks())
        return entries

    def _warm_packs(self) -> list[_Entry]:
        """Warm up packs of LoRA alone, up to the largest that fits."""
        entries = []
        for size in self._plan.packs:
            entry = _Entry(f"pack of {size}", "pack", size)
            if not self._warm_pack(entry):
                self.notes.append(
                    f"a pack of {size} does not fit in memory; the ladder ends before it"
                )
                self.too_large = size
                break
            self.largest = size
            entries.append(entry)
        return entries

    def _designs(self) -> list[_Entry]:
        """Return the largest pack with each design except LoRA alone, which has a row already."""
        size = self.largest
        return [
            _Entry(f"pack of {size}, {name}", "pack", size, name)
            for name in DESIGNS
            if name != LORA
        ]

    def _ranks(self) -> list[_Entry]:
        """Return the largest pack with each of the ranks, then with all of them."""
        size, ranks = self.largest, self._plan.ranks
        mixes = [*((rank,) for rank in ranks), ranks]
        return [
            _Entry(f"pack of {size}, r {','.join(map(str, mix))}", "pack", size, ranks=mix)
            for mix in mixes
        ]

    def _warm_fitting(self, entries: list[_Entry]) -> list[_Entry]:
        """Warm up packs, and return those that fit."""
        fitting = [e for e in entries if self._warm_pack(e)]
        self.notes += [f"{e.name}: does not fit in memory" for e in entries if e not in fitting]
        return fitting

    def _warm_plain(self) -> _Entry:
        entry = _Entry("plain loop", "plain")
        self._plain_base = base = bench_base(self.setting)
        if self.setting.device == "cpu":
            memory = cpu_memory(self.setting, self._input_ids, 1, None)
            self._plain = PlainLoop(base, self.setting, self._input_ids)
        else:
            loop, memory = gpu_memory(
                lambda: PlainLoop(base, self.setting, self._input_ids), self._base_bytes
            )
            assert isinstance(loop, PlainLoop)
            self._plain = loop
        time_steps(self._plain, WARM_STEPS, self.setting.device)
        entry.peak = memory.peak if memory else None
        return entry

    def _warm_pack(self, entry: _Entry) -> bool:
        """Warm up a pack, and return whether it fits."""
        self._say(f"warming up: {entry.name}")
        memory = self.measure_memory(entry.trials, entry.design, entry.ranks)
        if memory is None:
            return False
        entry.peak = memory.peak
        if entry.design == LORA and not entry.ranks:
            self.memories[entry.trials] = memory
        if self.setting.device == "cpu":
            time_steps(self.loop(entry.trials, entry.design, entry.ranks), 1, "cpu")
        return True

    def _measure(self, entry: _Entry) -> None:
        loop: Loop
        if entry.kind == "processes":
            assert self._workers is not None
            release(self.setting.device)  # the other processes need the memory
            entry.seconds.append(self._workers.run())
            entry.peak = self._workers.peak_bytes()
            return
        if entry.kind == "plain":
            assert self._plain is not None
            self._lanes.rest()
            loop = self._plain
        else:
            loop = self.loop(entry.trials, entry.design, entry.ranks)
        time_steps(loop, WARM_STEPS, self.setting.device)
        entry.seconds.append(time_steps(loop, self.setting.steps, self.setting.device))
        if isinstance(loop, PackLoop):
            entry.series = {k: loop.series[k] for k in spread(entry.trials, _CHECKED)}

    def _solo(self, trials: set[tuple[int, int]]) -> dict[tuple[int, int], list[float]]:
        """Return the loss series of each trial and rank, trained alone in a pack of one."""
        solo_series = {}
        if trials:
            self._say(f"solo runs of {len(trials)} trials, to compare losses")
        for trial, rank in sorted(trials):
            loop = PackLoop(self._lanes, self._ranked((rank,)), self._input_ids, [trial])
            time_steps(loop, WARM_STEPS + self.setting.steps, self.setting.device)
            solo_series[trial, rank] = loop.series[trial]
        return solo_series

    def _row(self, entry: _Entry, solo: dict[tuple[int, int], list[float]]) -> Row:
        setting = self._ranked(entry.ranks)
        differences = [
            max(abs(a - b) for a, b in zip(series, solo[k, setting.rank_of(k)], strict=True))
            for k, series in _comparable(entry).items()
        ]
        return Row(
            name=entry.name,
            kind=entry.kind,
            trials=entry.trials,
            trial_steps=entry.trials * self.setting.steps,
            seconds=entry.seconds,
            design=entry.design,
            ranks=entry.ranks,
            parameters=self.loop(
                max(1, len(entry.ranks)), entry.design, entry.ranks
            ).num_parameters(),
            peak_bytes=entry.peak,
            loss_difference=max(differences, default=None),
        )


def _comparable(entry: _Entry) -> dict[int, list[float]]:
    """Return the loss series that are compared with those of solo runs."""
    return entry.series if entry.design == LORA else {}


def spread(whole: int, parts: int) -> Sequence[int]:
    """Return at most ``parts`` numbers below ``whole``, evenly spread and starting at 0."""
    count = min(whole, parts)
    return [i * whole // count for i in range(count)]
