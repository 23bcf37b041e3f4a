"""Results of a benchmark: raw repeats, and the figures computed from them."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from studies.bench.designs import LORA

Kind = Literal["plain", "processes", "pack"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to train.

    Attributes:
        name: title of the row.
        kind: the plain loop, one process per trial, or a pack.
        trials: number of trials that train at the same time.
        trial_steps: steps of all trials together in one repeat.
        seconds: seconds of each repeat.
        parameters: number of parameters that each trial trains; the largest if ranks differ.
        design: one of :data:`DESIGNS`.
        ranks: ranks of the trials in turn; empty if all have the setting's rank.
        peak_bytes: peak memory with the base, summed over processes if there are several.
        loss_difference: largest difference of a trial's loss from its solo run; None if there is
            no solo run.
    """

    name: str
    kind: Kind
    trials: int
    trial_steps: int
    seconds: Sequence[float]
    parameters: int
    design: str = LORA
    ranks: Sequence[int] = ()
    peak_bytes: int | None = None
    loss_difference: float | None = None

    @property
    def rate(self) -> float:
        """Trial-steps per second (median of the repeats)."""
        return self.trial_steps / statistics.median(self.seconds)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """All measurements of a benchmark.

    Attributes:
        setting: the setting of each trial, equal in all rows.
        provenance: versions, commit, device.
        step_operations: operations of one trial-step; see :func:`step_operations`.
        matmul_rates: operations per second of the device in each repeat.
        rows: rows in the order of the table.
        memory: memory of packs of growing size, and its growth with each seat.
        report: cost of a report through Tune and host.
        driver: milliseconds of the driver's own work for a trial, and for a late report.
        search: trials per hour of a whole search, packed and with a process for each trial.
        notes: notes for the reader, such as the size at which packs stopped fitting.
    """

    setting: Mapping[str, Any]
    provenance: Mapping[str, Any]
    step_operations: int
    matmul_rates: Sequence[float]
    rows: Sequence[Row]
    memory: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    driver: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def matmul_rate(self) -> float:
        """Operations per second of the device (median of the repeats); 0 without repeats."""
        return statistics.median(self.matmul_rates) if self.matmul_rates else 0.0

    @property
    def design_rows(self) -> Sequence[Row]:
        """Rows of packs of one size, LoRA alone first; empty if designs were not measured."""
        sizes = {r.trials for r in self.rows if r.design != LORA}
        packs = [r for r in self.rows if r.kind == "pack" and not r.ranks]
        return [r for r in packs if r.trials in sizes]

    def step_time_ratios(self, row: Row) -> Sequence[float]:
        """Return the ratio of a step's time to that of LoRA alone in each repeat.

        Rows are measured in turns, so repeats are pairs.
        """
        lora = self._lora_beside(row)
        return (
            [] if lora is None else [a / b for a, b in zip(row.seconds, lora.seconds, strict=True)]
        )

    @property
    def mixed_row(self) -> Row | None:
        """The pack that mixes ranks; None if ranks were not compared or it did not fit."""
        return next((r for r in self.rows if len(r.ranks) > 1), None)

    def mixed_rank_ratios(self) -> Sequence[float]:
        """Return the speed of the pack that mixes ranks over that of packs of one rank, by repeat.

        The latter is what its trials would take, each in a pack of its own rank. Empty without
        such packs.
        """
        mixed = self.mixed_row
        equal = {r.ranks[0]: r.seconds for r in self.rows if len(r.ranks) == 1}
        if mixed is None or set(mixed.ranks) - equal.keys():
            return []
        turns = [equal[mixed.ranks[k % len(mixed.ranks)]] for k in range(mixed.trials)]
        means = [statistics.mean(repeat) for repeat in zip(*turns, strict=True)]
        return [a / b for a, b in zip(means, mixed.seconds, strict=True)]

    def figures(self, row: Row) -> dict[str, float | None]:
        """Return the figures of a row for the tables; the last two compare it with LoRA alone."""
        tokens = self.setting["block_size"] * self.setting["batch_size"]
        share = row.rate * self.step_operations / self.matmul_rate if self.matmul_rate else None
        lora = self._lora_beside(row)
        return {
            "trial_steps_per_s": row.rate,
            "tokens_per_s": row.rate * tokens,
            "matmul_share": share,
            "ratio_to_plain": self._ratio(row, "plain"),
            "ratio_to_processes": self._ratio(row, "processes"),
            "added_parameters": None if lora is None else row.parameters - lora.parameters,
            "step_time_ratio": None
            if lora is None
            else statistics.median(self.step_time_ratios(row)),
        }

    def _ratio(self, row: Row, kind: Kind) -> float | None:
        other = next((r for r in self.rows if r.kind == kind), None)
        return None if other is None else row.rate / other.rate

    def _lora_beside(self, row: Row) -> Row | None:
        """Return the row of LoRA alone in a pack of the same size; None if this row is no pack."""
        packs = (r for r in self.rows if row.kind == r.kind == "pack" and r.trials == row.trials)
        return next((r for r in packs if r.design == LORA and not r.ranks), None)

    def to_dict(self) -> dict[str, Any]:
        """Return all values, raw repeats included, as JSON types."""
        rows = [{**asdict(r), "seconds": list(r.seconds), **self.figures(r)} for r in self.rows]
        mixed = self.mixed_rank_ratios()
        return {
            **asdict(self),
            "rows": rows,
            "matmul_rate": self.matmul_rate,
            "mixed_rank_ratio": statistics.median(mixed) if mixed else None,
        }
