"""What a benchmark found: raw repeats, and the figures that follow from them."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["plain", "processes", "pack"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to train.

    Attributes:
        trials: that train at the same time.
        trial_steps: of all of them together in one repeat.
        seconds: of each repeat.
        peak_bytes: most memory, base included; of all processes together where there are several.
        loss_difference: largest difference of a trial's loss from its solo run; None where there is none to compare.
    """

    name: str
    kind: Kind
    trials: int
    trial_steps: int
    seconds: Sequence[float]
    peak_bytes: int | None = None
    loss_difference: float | None = None

    @property
    def rate(self) -> float:
        """Trial-steps per second, the median of the repeats."""
        return self.trial_steps / statistics.median(self.seconds)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """All that was measured.

    Attributes:
        setting: one trial as every row trains it.
        provenance: versions, commit, device.
        step_operations: of one trial-step; see :func:`step_operations`.
        matmul_rates: operations per second of the device, of each repeat.
        rows: in the order of the table.
        landmark_costs: by kind, percent of time over LoRA alone in the largest pack.
        memory: of packs of growing size, and the growth with each seat.
        report: cost of a report through Tune and host.
        search: trials per hour of a whole search, ours and a process for each trial.
        notes: what the reader must know, such as where the ladder of packs ended.
    """

    setting: Mapping[str, Any]
    provenance: Mapping[str, Any]
    step_operations: int
    matmul_rates: Sequence[float]
    rows: Sequence[Row]
    landmark_costs: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def matmul_rate(self) -> float:
        return statistics.median(self.matmul_rates) if self.matmul_rates else 0.0

    def figures(self, row: Row) -> dict[str, float | None]:
        """What the table shows of a row."""
        tokens = self.setting["block_size"] * self.setting["batch_size"]
        share = row.rate * self.step_operations / self.matmul_rate if self.matmul_rate else None
        return {
            "trial_steps_per_s": row.rate,
            "tokens_per_s": row.rate * tokens,
            "matmul_share": share,
            "ratio_to_plain": self._ratio(row, "plain"),
            "ratio_to_processes": self._ratio(row, "processes"),
        }

    def _ratio(self, row: Row, kind: Kind) -> float | None:
        other = next((r for r in self.rows if r.kind == kind), None)
        return None if other is None else row.rate / other.rate

    def to_dict(self) -> dict[str, Any]:
        """Plain values, raw repeats included."""
        rows = [{**asdict(r), "seconds": list(r.seconds), **self.figures(r)} for r in self.rows]
        return {**asdict(self), "rows": rows, "matmul_rate": self.matmul_rate}
