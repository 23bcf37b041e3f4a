"""The results of a study: the arms, the comparisons with their intervals, and the verdict."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hylorada.runtime.checksums import SEAL
from studies.analysis.comparisons import Comparison, compare_arms
from studies.analysis.components import Component, components_of
from studies.analysis.confirm_losses import ConfirmLosses
from studies.analysis.next_step import NextStep, next_step
from studies.analysis.notes import repeated_look, result_notes
from studies.analysis.recommendations import recommendations
from studies.analysis.replication import Replicated, replicated
from studies.analysis.verdict import verdict
from studies.files.folder_files import read_json, reading, write_json
from studies.process.phases import phase
from studies.spec.published import REPLICATION
from studies.spec.study import Study
from studies.trials.records import (
    Record,
    owner_of,
    read_id,
    read_record,
)

if TYPE_CHECKING:
    from studies.trials.store import Store  # imports Optuna


@dataclass(frozen=True)
class ArmResult:
    """One arm after the confirm stage.

    Attributes:
        arm: Name of the arm.
        trial: Search trial whose configuration was confirmed; that of the first search.
        params: Searched parameters of that configuration.
        ppl: exp of the mean test NLL over all paired runs, every search counting equally.
        ppl_median: Median test PPL of these runs.
        ppl_by_seed: Test PPL of each run.
        seeds: Number of the paired seed of each run.
        parameters: Number of trainable parameters of the adapter.
        trial_seconds: Mean time of a confirm run, which is its share of its packs' time.
        searched: Number of search trials in each state.
        runs: Name of each run; empty in results of earlier versions.
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
        study: Name of the study.
        base_ppl: Test PPL of the base without an adapter; None if it was not measured.
        tokens: Number of test tokens that each run predicts.
        arms: Arms that have finished paired runs, in the study's order.
        comparisons: Comparisons on the test split, each with its decision (``outcome``).
        verdict: The verdict in sentences.
        earlier: Verdicts that the test split gave before the study was extended, oldest first.
        notes: What the reader should also know, such as arms left out and runs that failed.
        provenance: Commit, versions, model and data fingerprints, seeds.
        looks: Number of replicates (searches, or seeds of a single search) at each look at the test
            split.
        components: Comparisons held against the published criteria, if the study asks for that.
        recommendations: Arms by use, in sentences, from these components.
        replication: The published claims, measured; only for the study ``replication``.
        next_step: What the published plan does next; None where it has nothing to say, and in
            results of earlier versions.
        first_level: Level of the first of the earlier verdicts; None without one, and where an
            earlier version wrote it.
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
    components: tuple[Component, ...] = ()
    recommendations: tuple[str, ...] = ()
    replication: tuple[Replicated, ...] = ()
    next_step: NextStep | None = None
    first_level: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def comparison(self, arm: str, reference: str) -> Comparison | None:
        return next((c for c in self.comparisons if (c.arm, c.reference) == (arm, reference)), None)


@phase("analysis")
def gather(
    store: "Store",
    base: Mapping[str, Any] | None,
    provenance: Mapping[str, Any],
    notes: list[str],
    before: Results | None = None,
    documents: npt.NDArray[np.int64] | None = None,
) -> Results:
    """Compute the results of all confirm runs that have finished.

    Args:
        store: Store of the study.
        base: Test figures of the base alone; None if they were not measured.
        provenance: Provenance of the results.
        notes: Further notes, which come first.
        before: Earlier results of the study, if any: a user who extends it may have read them.
        documents: [N] document of each test block; None where the text has no documents.
    """
    study = store.study
    losses = ConfirmLosses(study, store.records, store.folder, documents)
    kept = {arm: runs for arm in study.arms if (runs := losses.kept(arm))}
    arms = tuple(_arm_result(store, losses, arm, runs) for arm, runs in kept.items())
    looks = _looks(study, losses, before)
    parameters = {a.arm: a.parameters for a in arms}
    comparisons = compare_arms(losses, _declared(study, looks), parameters)
    components = (
        components_of(study, store.records, comparisons, parameters) if study.criteria else ()
    )
    earlier = _earlier(before, comparisons)
    first = _first_level(before, earlier)
    base_ppl = None if base is None else float(base["ppl"])
    return Results(
        study=study.name,
        base_ppl=base_ppl,
        tokens=losses.tokens(),
        arms=arms,
        comparisons=comparisons,
        verdict=verdict(study, comparisons),
        notes=(*notes, *result_notes(store, losses, kept), *repeated_look(earlier, study, first)),
        provenance=provenance,
        earlier=earlier,
        looks=looks,
        components=components,
        recommendations=recommendations(components, {a.arm: a.ppl for a in arms}),
        replication=replicated(losses, base_ppl) if study.definition == REPLICATION else (),
        next_step=next_step(study, comparisons),
        first_level=first,
    )


def _looks(study: Study, losses: ConfirmLosses, before: Results | None) -> tuple[int, ...]:
    """Return the looks taken, including this one.

    New runs at an old number of replicates count as a look with one replicate more.
    """
    seeds = [losses.seeds(s) for s in range(study.searches) if losses.seeds(s)]
    now = len(seeds) if study.searches > 1 else len(seeds[0]) if seeds else 0
    taken = _taken(before)
    if (
        study.searches > 1
        and before is not None
        and before.comparisons
        and before.comparisons[0].scope != "method"
    ):
        # Those looks counted seeds; assume the least similar looks possible.
        taken = tuple(range(2, 2 + len(taken)))
    same = before is not None and sorted(losses.names()) == sorted(
        n for a in before.arms for n in a.runs
    )
    if now < 2 or (same and taken):
        return taken
    return (*taken, max(now, taken[-1] + 1) if taken else now)


def _taken(before: Results | None) -> tuple[int, ...]:
    """Return the looks of earlier results; those of earlier versions are themselves one look."""
    if before is None or before.looks or not before.comparisons:
        return () if before is None else before.looks
    seeds = before.comparisons[0].seeds
    return (seeds,) if seeds >= 2 and not before.arms[0].runs else ()


def _declared(study: Study, taken: tuple[int, ...]) -> tuple[int, ...]:
    """Return all looks that share the level: those taken, and the declared ones still to come."""
    return () if not taken else tuple(sorted({*taken, *(n for n in study.looks if n > taken[-1])}))


def _earlier(before: Results | None, comparisons: tuple[Comparison, ...]) -> tuple[str, ...]:
    """Return the verdicts before this one.

    A study that is run again without new trials or seeds has the same change in every seed; then it
    has not looked again, unless it is judged at another level: that is another verdict.
    """
    if before is None:
        return ()
    then, now = (
        {(c.arm, c.reference): c.by_seed for c in compared}
        for compared in (before.comparisons, comparisons)
    )
    levels = [{c.level for c in compared} for compared in (before.comparisons, comparisons)]
    same = (
        levels[0] == levels[1]
        and then.keys() == now.keys()
        and all(
            len(then[k]) == len(now[k]) and np.allclose(then[k], now[k], rtol=0, atol=1e-9)
            for k in then
        )
    )
    return before.earlier if not then or same else (*before.earlier, before.verdict)


def _first_level(before: Results | None, earlier: tuple[str, ...]) -> float | None:
    """Return the level of the first of the earlier verdicts; None where it is not known."""
    if before is None or not earlier:
        return None
    if before.earlier:
        return before.first_level
    return before.comparisons[0].level


def _arm_result(store: "Store", losses: ConfirmLosses, arm: str, runs: list[Record]) -> ArmResult:
    states = [r.state for r in store.of("search", arm) if r.search < store.study.searches]
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


def read_results(path: Path) -> Results:
    """Return the results stored in ``results.json``.

    Raises:
        InputError: The file is lost or damaged, or belongs to another study.
    """
    results: Results = read_json(path, Results, _owner(path))
    if SEAL not in read_json(path, Mapping[str, Any]):
        with reading(path):
            _check_figures(results, path.parent)
    return results


def write_results(path: Path, results: Results) -> None:
    """Write results with a checksum that is bound to their study."""
    write_json(path, results.to_dict(), _owner(path))


def _owner(path: Path) -> str:
    """Return the owner that the checksum of a study's results is bound to."""
    return owner_of(read_id(path.parent), "results")


def _check_figures(results: Results, folder: Path) -> None:
    """Check figures that follow from each other, for results of versions without a checksum.

    Raises:
        ValueError: A figure does not follow from the others.
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
        raise ValueError(f"{what} is {stored}, but the figures it follows from give {computed}")
