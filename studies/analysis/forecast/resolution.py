"""The smallest effect that a study is expected to see, from an earlier study of the same base."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hylorada import InputError
from studies.analysis.comparisons import Comparison
from studies.analysis.results import Results, read_results
from studies.files.folder_files import read_json, stored_study
from studies.spec.study import Study
from studies.statistics.decision import level_per_look
from studies.statistics.intervals import Uncertainty
from studies.statistics.power import Components, expected, smallest_visible

_SAME = ("model_fingerprint", "data_fingerprint")  # of the inputs that an earlier study shares
_SMALL = 1e-4  # a standard deviation so small that per cent and logarithm agree


@dataclass(frozen=True)
class Resolution:
    """The smallest effect that a comparison is expected to see, with 80 % power.

    Attributes:
        arm: Name of the arm.
        reference: Name of the arm that it is compared with.
        percent: The effect in % PPL, from the spread in the earlier study; None without one.
        source: Name of that study; None without one.
        searches: Number of its searches.
    """

    arm: str
    reference: str
    percent: float | None = None
    source: str | None = None
    searches: int = 0


def resolutions(
    study: Study, inputs: Mapping[str, str], test_blocks: int, storage: Path
) -> tuple[Resolution, ...]:
    """Return the expected resolution of each comparison.

    Args:
        study: The study to run.
        inputs: Fingerprints of its base and text.
        test_blocks: Number of its test blocks.
        storage: Storage folder with earlier studies.
    """
    earlier = list(_earlier(study, inputs, storage))
    found = []
    for arm, reference in study.comparisons:
        known = [
            (results, c)
            for results in earlier
            if (c := results.comparison(arm, reference)) is not None and _tells(study, c)
        ]
        if not known:
            found.append(Resolution(arm, reference))
            continue
        results, c = max(known, key=lambda pair: pair[1].searches)
        blocks = results.tokens // (study.block_size - 1)
        percent = _expected_percent(study, c, blocks, test_blocks)
        found.append(Resolution(arm, reference, percent, results.study, c.searches))
    return tuple(found)


def visible_spreads(study: Study) -> float | None:
    """Return the smallest visible effect in standard deviations of a difference.

    They are those of the difference between searches, or between the seeds of a single search; the
    noise of the test text comes on top. None for a single run, which shows no spread.
    """
    count = study.searches if study.searches > 1 else study.seeds
    if count < 2:
        return None
    part = Uncertainty(_SMALL**2 / count, count - 1, 0.0, 1.0)
    return smallest_visible(part, _level(study)) / (100 * _SMALL)


def _level(study: Study) -> float:
    return level_per_look(study.looks) if study.looks else 0.05


def _earlier(study: Study, inputs: Mapping[str, str], storage: Path) -> Iterable[Results]:
    """Yield the results of earlier studies of the same base, text and block size."""
    for path in sorted((storage / "studies").glob("*/results.json")):
        try:
            theirs = read_json(path.with_name("inputs.json"), Mapping[str, str], "inputs")
            stored = stored_study(path.with_name("study.json"))
            if stored["block_size"] == study.block_size and all(
                theirs.get(name) == inputs.get(name) for name in _SAME
            ):
                yield read_results(path)
        except (InputError, KeyError):  # a damaged study is reported where it is used
            continue


def _tells(study: Study, c: Comparison) -> bool:
    """Return whether a comparison tells the spread between the replicates of this study."""
    if c.error is None or c.replicate_sd is None:
        return False
    return c.searches > 1 if study.searches > 1 else c.searches == 1 and c.seeds > 1


def _expected_percent(study: Study, c: Comparison, blocks: int, test_blocks: int) -> float | None:
    """Return the smallest effect in % that this study is expected to see."""
    count = study.searches if study.searches > 1 else study.seeds
    variances = _components(c, blocks)
    if variances is None or count < 2:
        return None
    parts = expected(variances, study.searches, study.seeds, test_blocks)
    return smallest_visible(parts, _level(study))


def _components(c: Comparison, blocks: int) -> Components | None:
    """Return the variances behind a stored comparison, in squared loss per token."""
    runs = np.log1p(np.asarray(c.by_seed) / 100)
    if len(runs) != c.searches * c.seeds or blocks < 2 or c.error is None:
        return None
    by_search = runs.reshape(c.searches, c.seeds)
    seed = float(by_search.var(axis=1, ddof=1).mean()) if c.seeds > 1 else None
    search, replicates = None, (seed or 0.0) / c.seeds
    if c.searches > 1:
        between = float(by_search.mean(axis=1).var(ddof=1))
        search, replicates = max(0.0, between - replicates), between / c.searches
    return Components(search, seed, max(0.0, c.error**2 - replicates) * blocks, blocks, blocks - 1)
