"""What a study found: the table of arms, the comparisons with their intervals, and the verdict."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hylorada import InputError
from hylorada.runtime.checksums import SEAL
from studies.analysis.comparisons import Comparison, Losses, compare_arms, run_spread
from studies.analysis.verdict import verdict
from studies.files.folder_files import read_json, reading, write_json
from studies.spec.study import Study
from studies.trials.records import (
    Record,
    ended_trials,
    lost_trials,
    owner_of,
    read_id,
    read_record,
    read_records,
)
from studies.trials.store import Store
from studies.trials.winners import winners

_MUCH_STEADIER = (
    4  # times; by chance alone this happens to 1 comparison in 100 that has five runs at each rate
)


@dataclass(frozen=True)
class ArmResult:
    """One arm after the confirm stage.

    Attributes:
        arm: name.
        trial: the search trial whose configuration was confirmed; the first search's.
        params: what was confirmed of it.
        ppl: exp of the mean test NLL over all paired runs.
        ppl_median: median over these runs.
        ppl_by_seed: every run.
        seeds: number of the paired seed of each run.
        parameters: trainable numbers of the adapter.
        trial_seconds: mean time of a confirm run: its share of its packs' time.
        searched: search trials by state.
        runs: name of each run; empty in results of earlier versions.
    """

    arm: str
    trial: str
    params: Mapping[str, Any]
    ppl: float
    ppl_median: float
    ppl_by_seed: tuple[float, ...]
    seeds: tuple[int, ...]
    parameters: int
    trial_seconds: float
    searched: Mapping[str, int]
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Results:
    """Everything that ``hylorada report`` shows.

    Attributes:
        study: its name.
        base_ppl: test PPL of the base without any adapter; None if not measured.
        tokens: test tokens predicted.
        arms: by name.
        comparisons: arm against reference on the test split.
        verdict: in a sentence or two.
        earlier: verdicts that the test split gave before the study was extended, the first one
            first.
        notes: what the reader must know: arms left out, runs that failed.
        provenance: commit, versions, model and data fingerprints, seeds.
        looks: numbers of replicates (searches, or seeds of a single search) at which the test split
            was read.
    """

    study: str
    base_ppl: float | None
    tokens: int
    arms: tuple[ArmResult, ...]
    comparisons: tuple[Comparison, ...]
    verdict: str
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]
    earlier: tuple[str, ...] = ()
    looks: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def comparison(self, arm: str, reference: str) -> Comparison | None:
        return next((c for c in self.comparisons if (c.arm, c.reference) == (arm, reference)), None)


def gather(
    store: Store,
    base: Mapping[str, Any] | None,
    provenance: Mapping[str, Any],
    notes: list[str],
    before: Results | None = None,
    documents: npt.NDArray[np.int64] | None = None,
) -> Results:
    """Compute the results of whatever the confirm stage has finished.

    Args:
        store: of the study.
        base: test figures of the base alone, if they were measured.
        provenance: for the results.
        notes: what else the reader must know.
        before: the study's results until now, if it had any: whoever extends a study may have read
            them.
        documents: the document of each test block, where the text has documents.
    """
    study = store.study
    losses = Losses(study, store.records, store.folder, documents)
    kept = {arm: found for arm in study.arms if (found := losses.kept(arm))}
    arms = tuple(_arm_result(store, losses, arm, found) for arm, found in kept.items())
    looks = _looks(study, losses, before)
    comparisons = compare_arms(losses, _declared(study, looks), {a.arm: a.parameters for a in arms})
    earlier = _earlier(before, comparisons)
    return Results(
        study=study.name,
        base_ppl=None if base is None else float(base["ppl"]),
        tokens=losses.tokens(),
        arms=arms,
        comparisons=comparisons,
        verdict=verdict(study, comparisons),
        notes=(
            *notes,
            *_lost_runs(store),
            *_at_the_edge(losses),
            *_unsteady(losses),
            *_beyond(losses),
            *_idle_boundaries(kept),
            *empty_buckets(kept, study.block_size),
            *_looks_ahead(kept),
            *_read_again(earlier, study),
        ),
        provenance=provenance,
        earlier=earlier,
        looks=looks,
    )


def _looks(study: Study, losses: Losses, before: Results | None) -> tuple[int, ...]:
    """Return the looks taken, with this one; new runs at an old number of replicates count as one more."""
    found = [losses.seeds(s) for s in range(study.searches) if losses.seeds(s)]
    now = len(found) if study.searches > 1 else len(found[0]) if found else 0
    taken = _taken(before)
    if (
        study.searches > 1
        and before is not None
        and before.comparisons
        and before.comparisons[0].scope != "method"
    ):
        taken = tuple(
            range(2, 2 + len(taken))
        )  # they counted seeds: taken for the least alike that looks can be
    same = before is not None and sorted(losses.names()) == sorted(
        n for a in before.arms for n in a.runs
    )
    if now < 2 or (same and taken):
        return taken
    return (*taken, max(now, taken[-1] + 1) if taken else now)


def _taken(before: Results | None) -> tuple[int, ...]:
    """Return the looks that earlier results count; those of earlier versions count the one they are."""
    if before is None or before.looks or not before.comparisons:
        return () if before is None else before.looks
    seeds = before.comparisons[0].seeds
    return (seeds,) if seeds >= 2 and not before.arms[0].runs else ()


def _declared(study: Study, taken: tuple[int, ...]) -> tuple[int, ...]:
    """Return all looks that share the level: those taken, and those still declared."""
    return () if not taken else tuple(sorted({*taken, *(n for n in study.looks if n > taken[-1])}))


def _earlier(before: Results | None, comparisons: tuple[Comparison, ...]) -> tuple[str, ...]:
    """A study that is run again without new trials or seeds finds the same in every seed, and has not looked again."""
    if before is None:
        return ()
    then, now = (
        {(c.arm, c.reference): c.by_seed for c in found}
        for found in (before.comparisons, comparisons)
    )
    same = then.keys() == now.keys() and all(
        len(then[k]) == len(now[k]) and np.allclose(then[k], now[k], rtol=0, atol=1e-9)
        for k in then
    )
    return before.earlier if not then or same else (*before.earlier, before.verdict)


def _read_again(earlier: tuple[str, ...], study: Study) -> list[str]:
    if not earlier:
        return []
    times = f"{len(earlier)} earlier verdict" + "s" * (len(earlier) > 1)
    declared = "its level allows for that"
    undeclared = "no looks were declared in advance, so the first verdict used the full 5 % level"
    allowed = declared if study.looks else undeclared
    return [f"the test split has given {times} before this one; {allowed}. First: {earlier[0]}"]


def _at_the_edge(losses: Losses) -> list[str]:
    """Say which arms lose runs at a higher learning rate: the best common rate lies near the edge of stability."""
    study, notes = losses.study, []
    for arm in study.arms:
        searches = losses.searches((arm,))
        lost = [
            f
            for f in sorted(study.factors)
            if f > 1 and any(losses.diverged(s, arm, f) for s in searches)
        ]
        if lost:
            edge = f"{lost[0]:g} times the winning learning rate"
            notes.append(
                f"arm {arm!r} diverges at {edge}: the winning rate lies at the edge of stability"
            )
    return notes


def _unsteady(losses: Losses) -> list[str]:
    """Say where a lower learning rate of the profile makes runs differ much less from seed to seed."""
    study, notes = losses.study, []
    for pair in study.comparisons:
        here = run_spread(losses, pair, 1.0)
        for factor in sorted(f for f in study.factors if f < 1):
            there = run_spread(losses, pair, factor)
            if here is not None and there is not None and here > _MUCH_STEADIER * there > 0:
                less = (
                    f"{here / there:.0f} times less at {factor:g} times the winning learning rate"
                )
                edge = "the winning rate lies near the edge of stability, where chance decides; see the report"
                notes.append(f"{pair[0]} vs {pair[1]}: runs differ {less}: {edge}")
                break
    return notes


def _beyond(losses: Losses) -> list[str]:
    """Say where all arms train best at the highest rate of the profile: the search's range is too low."""
    factors = sorted(losses.study.factors)
    by_factor: dict[float, list[float]] = {f: [] for f in factors}
    for runs in losses.runs.values():
        for run in runs:
            by_factor[run.factor].append(run.nll if run.nll is not None else np.inf)
    means = {f: float(np.mean(values)) for f, values in by_factor.items() if values}
    best, counts = (
        min(means, key=lambda f: means[f], default=1.0),
        {len(v) for v in by_factor.values()},
    )
    if len(factors) < 2 or len(counts) > 1 or best != factors[-1] or means[best] >= means[1.0]:
        return []
    gain = -100 * np.expm1(means[best] - means[1.0])
    low = "the range searched may be too low; the report has the changes there"
    return [
        f"validation PPL is {gain:.0f} % lower at {best:g} times the winning learning rate: {low}"
    ]


def _looks_ahead(runs: Mapping[str, list[Record]]) -> list[str]:
    """Arms whose winner sees what it is to predict."""
    found = [
        arm
        for arm, kept in runs.items()
        if kept and kept[0].adapter.get("replication_noncausal_pooling")
    ]
    return [
        f"arm {arm!r} pools over the whole block, future tokens included (replication_noncausal_pooling): its PPL is "
        "not that of a language model"
        for arm in found
    ]


def _arm_result(store: Store, losses: Losses, arm: str, runs: list[Record]) -> ArmResult:
    states = [r.state for r in store.of("search", arm)]
    nll = np.array([losses.nll(r) for r in runs])
    by_search = [
        nll[[r.search == s for r in runs]].mean() for s in sorted({r.search for r in runs})
    ]
    return ArmResult(
        arm=arm,
        trial=runs[0].winner,
        params=runs[0].params,
        ppl=float(np.exp(np.mean(by_search))),
        ppl_median=float(np.median(np.exp(nll))),
        ppl_by_seed=tuple(np.exp(nll).tolist()),
        seeds=tuple(r.number for r in runs),
        parameters=runs[0].reports[-1].parameters,
        trial_seconds=float(np.mean([r.reports[-1].seconds for r in runs])),
        searched={s: states.count(s) for s in sorted(set(states))},
        runs=tuple(r.name for r in runs),
    )


def _lost_runs(store: Store) -> list[str]:
    """What the reader must know of confirm runs that ended badly: leaving them out flatters their arm."""
    study, notes = store.study, []
    found = winners(study, store.records)
    for arm in study.arms:
        runs = [
            r
            for (_, a), w in found.items()
            if a == arm
            for r in w.runs(store.records, "confirm")
            if r.factor == 1
        ]
        lost = [r for r in runs if r.state in ("diverged", "failed")]
        finished = any(r.state == "complete" for r in runs)
        effect = "its seed is left out of every arm" if finished else "the arm has no result"
        notes += [f"{r.name} {r.state}: {r.reason}; {effect}" for r in lost]
        if lost:
            count = f"{len(lost)} of {study.seeds * study.searches}"
            notes.append(
                f"{count} confirm runs of arm {arm!r} did not finish: it looks better than it is"
            )
    return notes


def _idle_boundaries(runs: Mapping[str, list[Record]]) -> list[str]:
    """Arms whose boundaries hardly moved in training: their result says little about learning them."""
    notes = []
    for arm, found in runs.items():
        moved = [
            max(
                abs(now - then)
                for now, then in zip(last.boundaries, last.start_boundaries, strict=True)
            )
            for last in (r.reports[-1] for r in found)
            if last.boundaries
        ]
        if moved and max(moved) < 1:
            notes.append(
                f"no boundary of arm {arm!r} moved by as much as one token (at most {max(moved):.2f}): this says "
                "little about learning them; train longer, or raise boundary_lr_scale"
            )
    return notes


def empty_buckets(runs: Mapping[str, list[Record]], block_size: int) -> list[str]:
    """Arms that have ended with fewer buckets than they were given: their boundaries met, or left the block."""
    notes = []
    for arm, found in runs.items():
        learned = [sorted(r.reports[-1].boundaries) for r in found if r.reports[-1].boundaries]
        held = {len(_held(edges, block_size)) for edges in learned}
        given = sorted({1 + len(edges) for edges in learned})
        buckets = given[-1] if given else 1
        if len(given) > 1:
            counts_of = [(len(_held(edges, block_size)), 1 + len(edges)) for edges in learned]
            if short := [f"{held_} of {all_}" for held_, all_ in counts_of if held_ < all_]:
                some = f"in {len(short)} of {len(learned)} runs of arm {arm!r} some buckets hold no position"
                notes.append(
                    f"{some} at the end of training ({', '.join(short)} do); see the boundaries in the report"
                )
        elif held and min(held) < buckets:
            counts = " to ".join(map(str, sorted({min(held), max(held)})))
            notes.append(
                f"arm {arm!r} was given {buckets} buckets, of which {counts} hold a position at the end of training: "
                "what it has learned is nearer to fewer buckets; see the boundaries in the report"
            )
    return notes


def _held(edges: list[float], block_size: int) -> set[int]:
    """Return the buckets that hold a position."""
    return set(np.searchsorted(edges, np.arange(block_size), side="right").tolist())


def load_records(folder: Path) -> dict[str, Record]:
    """All records of a study folder, read without opening it for writing.

    Raises:
        InputError: files are damaged or lost.
    """
    ended = ended_trials(
        folder
    )  # read first: a trial that ends meanwhile is in its file before it is in the database
    records = read_records(folder)
    if lost := lost_trials(folder, ended, records):
        raise InputError(lost)
    return records


def failures(records: Mapping[str, Record]) -> dict[str, list[str]]:
    """Names of the trials that raised, by reason; a trial's own name in it makes no reason of its own."""
    found: dict[str, list[str]] = {}
    for record in records.values():
        if record.state == "failed":
            found.setdefault((record.reason or "").replace(record.name, "TRIAL"), []).append(
                record.name
            )
    return found


def read_results(path: Path) -> Results:
    """Return the results that ``results.json`` holds.

    Raises:
        InputError: The file is lost or damaged, or belongs to another study.
    """
    found: Results = read_json(path, Results, _owner(path))
    if SEAL not in read_json(path, Mapping[str, Any]):
        with reading(path):
            _check_figures(found, path.parent)
    return found


def write_results(path: Path, results: Results) -> None:
    """Write results with a checksum, which is bound to their study."""
    write_json(path, results.to_dict(), _owner(path))


def _owner(path: Path) -> str:
    """Return what the checksum of a study's results is bound to."""
    return owner_of(read_id(path.parent), "results")


def _check_figures(results: Results, folder: Path) -> None:
    """Compare figures that follow from each other: results of earlier versions have no checksum.

    Raises:
        ValueError: One figure is not what the others give.
    """
    ppl = {}
    for arm in results.arms:
        ppl[arm.arm] = np.array(arm.ppl_by_seed)
        for seed, stored in zip(arm.seeds, arm.ppl_by_seed, strict=True):
            path = folder / "trials" / f"{arm.trial}-confirm-{seed:02d}" / "trial.json"
            if path.exists():
                metrics = read_record(path).reports[-1].metrics
                _require_close(f"ppl_by_seed of {arm.arm}", stored, metrics.get("test/ppl", stored))
        _require_close(f"ppl of {arm.arm}", arm.ppl, np.exp(np.log(ppl[arm.arm]).mean()))
        _require_close(f"ppl_median of {arm.arm}", arm.ppl_median, np.median(ppl[arm.arm]))
    for c in results.comparisons:
        ratios = ppl[c.arm] / ppl[c.reference]
        _require_close(f"by_seed of {c.arm} vs {c.reference}", c.by_seed, 100 * (ratios - 1))
        _require_close(
            f"change of {c.arm} vs {c.reference}",
            c.change,
            100 * (np.exp(np.log(ratios).mean()) - 1),
        )


def _require_close(what: str, stored: Any, computed: Any) -> None:
    if not np.allclose(stored, computed, rtol=1e-9, atol=1e-9):
        raise ValueError(f"{what} is {stored}, the figures that it follows from give {computed}")
