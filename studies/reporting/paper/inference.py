"""Sentences on how the arms of a study were compared."""

from studies.analysis.comparisons import Comparison
from studies.analysis.results import Results
from studies.analysis.verdict import replicates
from studies.reporting.paper.prose import cite
from studies.spec.study import Study


def statistics_sentences(study: Study, results: Results) -> list[str]:
    """Describe how differences were judged, as far as this study uses each method."""
    compared = results.comparisons
    if not compared:
        return ["No pair of arms could be compared."]
    first = compared[0]
    units = replicates(first.searches, first.seeds)
    sentences = [
        f"Arms were compared on {results.tokens:,} test tokens by paired differences over {units}, "
        "given as changes in PPL, 100 (exp(D) - 1) %, with D the mean difference in loss per "
        "token.",
        _interval(first, results.provenance.get("test_blocks")),
    ]
    if len(compared) > 1:
        sentences.append(
            f"P-values were adjusted for {len(compared)} comparisons by Holm's procedure"
            f"{cite('holm1979simple')}."
        )
    if first.outcome:
        sentences.append(_decision(first, len(compared)))
    if any(c.hodges_lehmann for c in compared):
        sentences.append(
            "We also give the Hodges-Lehmann estimate over replicates with its exact interval"
            f"{cite('hodges1963estimates')}."
        )
    if any(c.own_best for c in compared):
        sentences.append(
            "In addition, each arm was judged at its own best learning rate, the minimum of a "
            f"quadratic in the log of the rate through {len(study.factors)} factors."
        )
    return sentences


def _interval(c: Comparison, blocks: int | None) -> str:
    """Describe the intervals; results of earlier versions, which had others, get their size."""
    looks = "" if c.level == 0.05 else ", a level that allows for several looks at the test split"
    size = f"{100 * (1 - c.level):.3g} % intervals{looks}"
    if not c.scope:
        return f"We give {size}."
    spread = {"method": "searches", "configurations": "seeds"}.get(c.scope)
    variance = f"combine the variance over {spread} with that" if spread else "rest on the variance"
    few = "; fewer than 20 blocks without such documents count as independent"
    weights = (
        " The Student t tails of both variances are weighted by their shares"
        f"{cite('cochran1964behrens')}."
    )
    return (
        f"The {size} {variance} over test blocks, which may be correlated: blocks are "
        f"clustered by document{cite('cameron2015cluster')}, or taken as a time series where "
        f"documents are few or short{cite('lazarus2018har')}"
        f"{few if blocks is not None and blocks < 20 else ''}.{weights if spread else ''}"
    )


def _decision(c: Comparison, count: int) -> str:
    p = f"{'Holm-adjusted ' if count > 1 else ''}p < {c.level:.3g}"
    decision = f"An arm is called better or worse if the interval excludes 0 and {p}"
    if not c.margin:
        return f"{decision}."
    return (
        f"{decision}; otherwise two arms are called equivalent if the whole interval lies within "
        f"±{c.margin:g} %{cite('schuirmann1987tost')}."
    )
