"""An arm against itself: how often studies report a false difference, and a planted true one.

Two arms of one space are searched in studies of many searches. Each R searches are judged as one
short study, because searches of one study share no seeds, data orders or proposals. A planted
effect is added to the second arm's test losses.

Usage: ``python tests/programs/itself.py --studies 40``
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from studies import learnable_bucketing
from studies.analysis.confirm_losses import ConfirmLosses
from studies.process.options import Options
from studies.runner.inputs import prepare
from studies.runner.run import run_study
from studies.spec.study import Study
from studies.statistics.comparison import Comparison, compare
from studies.statistics.differences import Differences, paired
from studies.trials.loading import load_records

SEARCHES = 3  # searches of each short study
_AT_ONCE = 20  # short studies in one study that is run
PLANTED = 0.3  # planted effect in %


def twins(matched: bool, studies: int, seed: int) -> Study:
    """Return a study of one arm under two names, with the searches of this many short studies."""
    values = learnable_bucketing.STUDY
    common, arm = values["common"]["space"], values["arms"]["fixed"]
    if not matched:
        arm = {**arm, "space": {**common, **arm["space"]}}
    short = {
        "trials": 2,
        "searches": SEARCHES * studies,
        "finalists": 1,
        "profile": [1.0],
        "seeds": 1,
    }
    # Such a low learning rate seldom wins. If the defaults won, both arms would be equal to the
    # last bit.
    defaults = {**values["defaults"], "max_steps": 24, "learning_rate": 5e-4}
    steps = {"eval_every": 8, "grace_steps": 8, "defaults": defaults}
    matching = {
        "common": {"space": common if matched else {}},
        "matched": matched,
        "seed": seed,
        "name": "twins",
    }
    arms = {"arms": {"one": arm, "other": arm}, "comparisons": [["other", "one"]], "subject": ""}
    return Study.from_dict({**values, **short, **steps, **matching, **arms})


def differences(study: Study, storage: Path) -> Iterator[Differences]:
    """Run a study, and yield the differences of each short study in it."""
    options = Options(storage=storage)
    run_study(study, options, Console(stderr=True))
    folder = options.study_folder(study.name)
    documents = prepare(study, options).test_documents
    losses = ConfirmLosses(study, load_records(folder), folder, documents)
    for first in range(0, study.searches, SEARCHES):
        places = [(s, losses.seeds(s)) for s in range(first, first + SEARCHES)]
        ours, theirs = (
            [losses.blocks(arm, s, 1.0, seeds) for s, seeds in places] for arm in ("other", "one")
        )
        yield paired("other", "one", ours, theirs, study.block_size - 1, documents)


def planted(measured: Differences, percent: float) -> Comparison:
    """Compare the arms as if the second one's perplexity were higher by this effect."""
    shift = float(np.log1p(percent / 100))
    (result,) = compare([replace(measured, by_search=tuple(d + shift for d in measured.by_search))])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--studies", type=int, default=40, help="short studies; default: %(default)s"
    )
    parser.add_argument(
        "--apart", action="store_true", help="search every parameter apart (matched: false)"
    )
    args = parser.parse_args()
    measured: list[Differences] = []
    for seed in range(-(-args.studies // _AT_ONCE)):
        with tempfile.TemporaryDirectory() as storage:
            count = min(_AT_ONCE, args.studies - seed * _AT_ONCE)
            measured += differences(twins(not args.apart, count, seed), Path(storage))
    results: list[Any] = [planted(d, 0.0) for d in measured]
    for number, c in enumerate(results):
        print(f"{number:3} {c.change:+.3f} % [{c.low:+.3f}, {c.high:+.3f}] {c.decision}")
    print(f"verdicts: {dict(Counter(c.decision for c in results))}")
    print(f"median |difference|: {np.median([abs(c.change) for c in results]):.3f} %")
    worse = [planted(d, PLANTED) for d in measured]
    called, covers = (
        sum(x)
        for x in (
            [c.decision == "worse" for c in worse],
            [c.low <= PLANTED <= c.high for c in worse],
        )
    )
    print(f"planted {PLANTED:g} %: called worse in {called} of {len(worse)}, covered by {covers}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
