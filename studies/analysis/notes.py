"""Notes on a study's results: what a reader of the verdict should also know."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hylorada import HyLoRADAConfig, TrainingConfig
from studies.analysis.comparisons import run_spread
from studies.analysis.confirm_losses import ConfirmLosses
from studies.analysis.verdict import listed
from studies.spec.proposals.start_entries import origins
from studies.spec.study import Study
from studies.trials.records import STOPPED, Record
from studies.trials.winners import confirm_runs

if TYPE_CHECKING:
    from studies.trials.store import Store  # imports Optuna

Runs = Mapping[str, Sequence[Record]]
_FULL_LEVEL = 0.05  # of a verdict without declared looks
# By chance alone, 1 comparison in 100 with five runs at each rate has so large a ratio of spreads.
_MUCH_STEADIER = 4


def result_notes(store: "Store", losses: ConfirmLosses, paired: Runs) -> list[str]:
    """Return the notes on a study's confirm runs.

    Args:
        store: Store of the study.
        losses: Test losses of the confirm runs.
        paired: Paired runs of each arm at the winning learning rate.
    """
    return [
        *_lost_runs(store),
        *users_choices(store.study, store.records),
        *_diverged_above(losses),
        *_steadier_below(losses),
        *_better_above(losses),
        *_idle_boundaries(paired),
        *empty_buckets(paired, store.study.block_size),
        *_looks_ahead(paired),
        *_repeated_faults(paired),
        *_warm_start(store.study),
    ]


def _lost_runs(store: "Store") -> list[str]:
    """Name the confirm runs that diverged or failed: leaving them out flatters their arm."""
    study, notes = store.study, []
    for arm in study.arms:
        runs = confirm_runs(study, store.records, arm)
        lost = [r for r in runs if r.state in ("diverged", "failed")]
        finished = any(r.state == "complete" for r in runs)
        effect = "its seed is left out of every arm" if finished else "the arm has no result"
        notes += [f"{r.name} {r.state}: {r.reason}; {effect}" for r in lost]
        if lost:
            count = f"{len(lost)} of {study.seeds * study.searches}"
            notes.append(
                f"arm {arm!r}: {count} confirm runs did not finish, so its result is biased in "
                "its favour"
            )
    return notes


def users_choices(study: Study, records: Mapping[str, Record]) -> list[str]:
    """Say which trials a user has stopped or added, and what that means for the comparison."""
    notes = []
    for arm in study.arms:
        tried = [r for r in records.values() if (r.stage, r.arm) == ("search", arm)]
        if stopped := [r.name for r in tried if r.reason == STOPPED]:
            notes.append(
                f"arm {arm!r}: a user stopped {len(stopped)} of {len(tried)} search trials "
                f"({listed(stopped)}); stopped trials can't win, so the arm may look worse than "
                "it is"
            )
        if added := sum((r.stage, r.arm) == ("added", arm) for r in records.values()):
            notes.append(
                f"arm {arm!r}: a user added {added} trial{'s' * (added > 1)}, which took no part "
                "in the choice of winners, so every arm still had the same budget"
            )
    return notes


def _diverged_above(losses: ConfirmLosses) -> list[str]:
    """Name the arms that diverge at a higher learning rate of the profile."""
    study, notes = losses.study, []
    for arm in study.arms:
        searches = losses.searches((arm,))
        diverging = [
            f
            for f in sorted(study.factors)
            if f > 1 and any(losses.diverged(s, arm, f) for s in searches)
        ]
        if diverging:
            notes.append(
                f"arm {arm!r} diverges at {diverging[0]:g} times the winning learning rate, "
                "so the winning rate lies at the edge of stability"
            )
    return notes


def _steadier_below(losses: ConfirmLosses) -> list[str]:
    """Name the comparisons whose runs agree much better at a lower learning rate of the profile."""
    study, notes = losses.study, []
    for pair in study.comparisons:
        here = run_spread(losses, pair, 1.0)
        for factor in sorted(f for f in study.factors if f < 1):
            there = run_spread(losses, pair, factor)
            if here is not None and there is not None and here > _MUCH_STEADIER * there > 0:
                notes.append(
                    f"{pair[0]} vs {pair[1]}: the difference varies {here / there:.0f} times less "
                    f"between runs at {factor:g} times the winning learning rate, so the winning "
                    "rate lies near the edge of stability, where chance decides; "
                    'see "Learning rate" in the report'
                )
                break
    return notes


def _better_above(losses: ConfirmLosses) -> list[str]:
    """Say whether the arms together train best at the highest learning rate of the profile."""
    factors = sorted(losses.study.factors)
    by_factor: dict[float, list[float]] = {f: [] for f in factors}
    for runs in losses.runs.values():
        for run in runs:
            by_factor[run.factor].append(run.nll if run.nll is not None else np.inf)
    means = {f: float(np.mean(values)) for f, values in by_factor.items() if values}
    best = min(means, key=lambda f: means[f], default=1.0)
    counts = {len(values) for values in by_factor.values()}
    if len(factors) < 2 or len(counts) > 1 or best != factors[-1] or means[best] >= means[1.0]:
        return []
    gain = -100 * np.expm1(means[best] - means[1.0])
    if gain < (losses.study.margin or 0.0):
        return []
    return [
        f"validation PPL is {gain:.1f} % lower at {best:g} times the winning learning rate, so a "
        "range of higher rates may suit all arms better; "
        'see "Learning rate" in the report for the changes at that rate'
    ]


def _idle_boundaries(runs: Runs) -> list[str]:
    """Name the arms whose boundaries hardly moved: their result says little about learning them."""
    notes = []
    for arm, of_arm in runs.items():
        learning = [
            r for r in of_arm if r.adapter.get("replication_untrained", "nothing") == "nothing"
        ]
        last = [r.reports[-1] for r in learning if r.reports[-1].boundaries]
        moved = [
            abs(end - start)
            for report in last
            for end, start in zip(report.boundaries, report.start_boundaries, strict=True)
        ]
        if moved and max(moved) < 1:
            notes.append(
                f"arm {arm!r}: no boundary moved by a whole token in training (at most "
                f"{max(moved):.2f}), so its result says little about learning boundaries; "
                "train longer, or raise boundary_lr_scale"
            )
    return notes


def empty_buckets(runs: Runs, block_size: int) -> list[str]:
    """Name the arms some of whose buckets end empty: their boundaries met, or left the block.

    Args:
        runs: Finished runs of each arm.
        block_size: Number of tokens in a block.
    """
    notes = []
    for arm, of_arm in runs.items():
        learned = [sorted(r.reports[-1].boundaries) for r in of_arm if r.reports[-1].boundaries]
        buckets = [(_used_buckets(edges, block_size), 1 + len(edges)) for edges in learned]
        short = [(used, count) for used, count in buckets if used < count]
        if not short:
            continue
        where = f"in {len(short)} of {len(buckets)} runs " if len(short) < len(buckets) else ""
        notes.append(
            f"arm {arm!r}: {where}only {_containing(short)} after training; "
            f'see "Boundaries of {arm}" in the report'
        )
    return notes


def _containing(short: Sequence[tuple[int, int]]) -> str:
    """Say how many buckets contain a position, given (used, all) buckets of each run."""
    if len({count for _, count in short}) == 1:
        used = [u for u, _ in short]
        span = " to ".join(map(str, sorted({min(used), max(used)})))
        return f"{span} of {short[0][1]} buckets contain a position"
    shares = ", ".join(f"{u} of {count}" for u, count in short)
    return f"some buckets contain a position ({shares})"


def _used_buckets(edges: Sequence[float], block_size: int) -> int:
    """Return the number of buckets that contain a position."""
    return len(set(np.searchsorted(edges, np.arange(block_size), side="right").tolist()))


def _looks_ahead(runs: Runs) -> list[str]:
    """Name the arms whose winner sees the tokens that it predicts."""
    return [
        f"arm {arm!r} pools over the whole block, future tokens included "
        "(replication_noncausal_pooling), so its PPL is not that of a language model"
        for arm, of_arm in runs.items()
        if of_arm and sees_future(of_arm[0])
    ]


def _repeated_faults(runs: Runs) -> list[str]:
    """Name the faults of the published code that runs repeat, and the arms that do."""
    arms: dict[str, list[str]] = {}
    for arm, of_arm in runs.items():
        for field, value in repeated_faults(of_arm[0]) if of_arm else ():
            named = field if value is True else f"{field} {value}"
            arms.setdefault(named, []).append(arm)
    return [
        f"{fault} repeats a fault of the published code in {listed(names)}"
        for fault, names in arms.items()
    ]


def _warm_start(study: Study) -> list[str]:
    """Name the earlier studies whose winners every search began with."""
    if not (earlier := origins(study.start)):
        return []
    return [
        f"every search began with the winners of {listed(earlier)}, so the intervals hold for "
        "searches that begin there; if an earlier study used the same text, its verdict has read "
        "this test split before"
    ]


def repeated_faults(record: Record) -> list[tuple[str, Any]]:
    """Return the fields of a run that repeat faults, but for the one that has a note of its own."""
    defaults = {**HyLoRADAConfig().to_dict(), **TrainingConfig().to_dict()}
    return [
        (field, value)
        for field, value in {**record.adapter, **record.training}.items()
        if field.startswith("replication_")
        and field != "replication_noncausal_pooling"
        and value != defaults[field]
    ]


def sees_future(record: Record) -> bool:
    """Return whether a run's adapter sees the tokens that it predicts."""
    return bool(record.adapter.get("replication_noncausal_pooling"))


def repeated_look(
    earlier: Sequence[str], study: Study, first_level: float | None = None
) -> list[str]:
    """Say how often the test split gave a verdict before, if it did, and what the first one was."""
    if not earlier:
        return []
    times = f"{len(earlier)} verdict{'s' * (len(earlier) > 1)}"
    declared = "the level of this look allows for that"
    undeclared = (
        "no further looks were declared in advance, so the first verdict used the full 5 % level"
    )
    spent = first_level is not None and first_level >= _FULL_LEVEL
    allowed = declared if study.looks and not spent else undeclared
    return [f"the test split gave {times} before this one; {allowed}. First verdict: {earlier[0]}"]
