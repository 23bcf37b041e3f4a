"""What a study found: the table of arms, the comparisons with their intervals, and the verdict."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hylorada import InputError
from hylorada._seals import SEAL

from ._files import read_json, reading, write_json
from ._records import Record, ended_trials, lost_trials, owner_of, read_block_nll, read_id, read_record, read_records
from ._statistics import ArmScores, Comparison, compare, verdict
from ._store import Store
from ._study import Study


@dataclass(frozen=True)
class ArmResult:
    """One arm after the confirm stage.

    Attributes:
        arm: name.
        trial: the search trial whose configuration was confirmed.
        params: what that trial's search had proposed.
        ppl: exp of the mean test NLL over seeds.
        ppl_median: median over seeds.
        ppl_by_seed: every seed.
        seeds: numbers of the paired seeds.
        parameters: trainable numbers of the adapter.
        trial_seconds: mean time of a confirm run: its share of its packs' time.
        searched: search trials by state.
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
        earlier: verdicts that the test split gave before the study was extended, the first one first.
        notes: what the reader must know: arms left out, runs that failed.
        provenance: commit, versions, model and data fingerprints, seeds.
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
) -> Results:
    """Compute the results of whatever the confirm stage has finished.

    Args:
        store: of the study.
        base: test figures of the base alone, if they were measured.
        provenance: for the results.
        notes: what else the reader must know.
        before: the study's results until now, if it had any: whoever extends a study may have read them.
    """
    study = store.study
    runs = {arm: _confirmed(store, arm) for arm in study.arms}
    paired = _paired_seeds(runs)
    kept = {arm: [r for r in found if r.number in paired] for arm, found in runs.items()}
    scores = {arm: _scores(arm, found, store) for arm, found in kept.items() if found}
    pairs = [p for p in study.comparisons if all(x in scores for x in p)]
    comparisons = compare(list(scores.values()), pairs, seed=study.seed) if pairs else ()
    earlier = _earlier(before, comparisons)
    return Results(
        study=study.name,
        base_ppl=None if base is None else float(base["ppl"]),
        tokens=_tokens(scores),
        arms=tuple(_arm_result(store, kept[arm], s) for arm, s in scores.items()),
        comparisons=comparisons,
        verdict=_verdict(study, comparisons),
        notes=(
            *notes,
            *_lost_runs(store, runs),
            *_idle_boundaries(kept),
            *empty_buckets(kept, study.block_size),
            *_looks_ahead(kept),
            *_read_again(earlier),
        ),
        provenance=provenance,
        earlier=earlier,
    )


def _earlier(before: Results | None, comparisons: tuple[Comparison, ...]) -> tuple[str, ...]:
    """A study that is run again without new trials or seeds finds the same in every seed, and has not looked again."""
    if before is None:
        return ()
    then, now = ([(c.arm, c.reference, c.by_seed) for c in found] for found in (before.comparisons, comparisons))
    return before.earlier if not then or then == now else (*before.earlier, before.verdict)


def _read_again(earlier: tuple[str, ...]) -> list[str]:
    if not earlier:
        return []
    times = f"{len(earlier)} earlier verdict" + "s" * (len(earlier) > 1)
    return [
        f"the test split has given {times} before this one, which the intervals do not allow for: where a study goes "
        f"on because of what it found, chance findings grow likelier. First: {earlier[0]}"
    ]


def _looks_ahead(runs: Mapping[str, list[Record]]) -> list[str]:
    """Arms whose winner sees what it is to predict."""
    found = [arm for arm, kept in runs.items() if kept and kept[0].adapter.get("replication_noncausal_pooling")]
    return [
        f"arm {arm!r} pools over the whole block, future tokens included (replication_noncausal_pooling): its PPL is "
        "not that of a language model"
        for arm in found
    ]


def _verdict(study: Study, comparisons: tuple[Comparison, ...]) -> str:
    """The subject is named only where its own comparison, the study's first, could be made."""
    if not comparisons:
        return "No verdict: no pair of arms has finished the confirm stage."
    first = comparisons[0]
    if (first.arm, first.reference) == study.comparisons[0]:
        return verdict(comparisons, subject=study.subject)
    missing = " vs ".join(study.comparisons[0])
    return f"The main comparison, {missing}, could not be made; {verdict(comparisons)}"


def _confirmed(store: Store, arm: str) -> list[Record]:
    """Finished confirm runs of the arm's present winner; a longer search may have found another than before."""
    best = store.best(arm)
    runs = store.of("confirm", arm) if best else []
    return [r for r in runs if r.state == "complete" and best and r.winner == best.name]


def _paired_seeds(runs: Mapping[str, list[Record]]) -> set[int]:
    """Seeds that every arm with any finished run has finished."""
    sets = [{r.number for r in found} for found in runs.values() if found]
    return set.intersection(*sets) if sets else set()


def _scores(arm: str, runs: list[Record], store: Store) -> ArmScores:
    ordered = sorted(runs, key=lambda r: r.number)
    losses = [read_block_nll(store.folder, r) for r in ordered]
    return ArmScores(
        arm=arm,
        seeds=tuple(r.number for r in ordered),
        block_nll=np.stack(losses),
        tokens_per_block=store.study.block_size - 1,
    )


def _tokens(scores: Mapping[str, ArmScores]) -> int:
    first = next(iter(scores.values()), None)
    return 0 if first is None else first.block_nll.shape[1] * first.tokens_per_block


def _arm_result(store: Store, runs: list[Record], scores: ArmScores) -> ArmResult:
    states = [r.state for r in store.of("search", scores.arm)]
    best = store.best(scores.arm)
    return ArmResult(
        arm=scores.arm,
        trial=best.name if best else "",
        params=runs[0].params,
        ppl=scores.ppl_mean,
        ppl_median=scores.ppl_median,
        ppl_by_seed=tuple(float(p) for p in scores.ppl_by_seed),
        seeds=scores.seeds,
        parameters=runs[0].reports[-1].parameters,
        trial_seconds=float(np.mean([r.reports[-1].seconds for r in runs])),
        searched={s: states.count(s) for s in sorted(set(states))},
    )


def _lost_runs(store: Store, runs: Mapping[str, list[Record]]) -> list[str]:
    """What the reader must know of confirm runs that ended badly: leaving them out flatters their arm."""
    notes = []
    for arm, finished in runs.items():
        best = store.best(arm)
        ended = [r for r in store.of("confirm", arm) if r.state in ("diverged", "failed")]
        lost = [r for r in ended if best and r.winner == best.name]
        effect = "its seed is left out of every arm" if finished else "the arm has no result"
        notes += [f"{r.name} {r.state}: {r.reason}; {effect}" for r in lost]
        if lost:
            count = f"{len(lost)} of {store.study.seeds}"
            notes.append(f"{count} confirm runs of arm {arm!r} did not finish: it looks better than it is")
    return notes


def _idle_boundaries(runs: Mapping[str, list[Record]]) -> list[str]:
    """Arms whose boundaries hardly moved in training: their result says little about learning them."""
    notes = []
    for arm, found in runs.items():
        moved = [
            max(abs(now - then) for now, then in zip(last.boundaries, last.start_boundaries, strict=True))
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
        held = {len(set(np.searchsorted(edges, np.arange(block_size), side="right").tolist())) for edges in learned}
        buckets = 1 + max(map(len, learned), default=0)
        if held and min(held) < buckets:
            counts = " to ".join(map(str, sorted({min(held), max(held)})))
            notes.append(
                f"arm {arm!r} was given {buckets} buckets, of which {counts} hold a position at the end of training: "
                "what it has learned is nearer to fewer buckets; see the boundaries in the report"
            )
    return notes


def load_records(folder: Path) -> dict[str, Record]:
    """All records of a study folder, read without opening it for writing.

    Raises:
        InputError: files are damaged or lost.
    """
    ended = ended_trials(folder)  # read first: a trial that ends meanwhile is in its file before it is in the database
    records = read_records(folder)
    if lost := lost_trials(folder, ended, records):
        raise InputError(lost)
    return records


def failures(records: Mapping[str, Record]) -> dict[str, list[str]]:
    """Names of the trials that raised, by reason; a trial's own name in it makes no reason of its own."""
    found: dict[str, list[str]] = {}
    for record in records.values():
        if record.state == "failed":
            found.setdefault((record.reason or "").replace(record.name, "TRIAL"), []).append(record.name)
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
        _require_close(f"change of {c.arm} vs {c.reference}", c.change, 100 * (np.exp(np.log(ratios).mean()) - 1))


def _require_close(what: str, stored: Any, computed: Any) -> None:
    if not np.allclose(stored, computed, rtol=1e-9, atol=1e-9):
        raise ValueError(f"{what} is {stored}, the figures that it follows from give {computed}")
