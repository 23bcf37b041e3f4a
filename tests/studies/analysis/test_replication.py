"""Shares of the published figures, from invented losses with effects that are known."""

import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from studies import replication
from studies.analysis.confirm_losses import ConfirmLosses
from studies.analysis.replication import (
    ALL_FAULTS,
    BARE_BASE,
    MEAN_OF_PPL,
    SINGLE_SEED,
    FaultEffect,
    Replicated,
    _says,
    replicated,
)
from studies.analysis.results import Results
from studies.files.typed_json import typed
from studies.spec.published import CLAIMS
from studies.spec.study import Study
from studies.statistics.change import Change

SEEDS, BLOCKS = 4, 30


class Invented:
    """The losses of a study: 4 + noise of the text, which all arms share, + an effect of the arm.

    Args:
        effects: log effect of each arm, found by the parts of its name.
        text: standard deviation over blocks.
        seed: standard deviation of each run.
    """

    def __init__(self, effects: dict[str, float], text: float = 0.0, seed: float = 0.0) -> None:
        self.study = Study.from_dict(replication.STUDY)
        self._effects = effects
        rng = np.random.default_rng(0)
        self._text = rng.normal(0, text, BLOCKS) if text else np.zeros(BLOCKS)
        self._runs = {
            a: rng.normal(0, seed, SEEDS) if seed else np.zeros(SEEDS) for a in self.study.arms
        }

    def searches(self, arms: Sequence[str]) -> tuple[int, ...]:
        return (0,)

    def seeds(self, search: int) -> tuple[int, ...]:
        return tuple(range(SEEDS))

    def documents_of(self, *arms: str) -> None:
        return None

    def blocks(
        self, arm: str, search: int, factor: float, seeds: Sequence[int]
    ) -> npt.NDArray[np.float64]:
        effect = sum(x for part, x in self._effects.items() if part in arm)
        losses = 4 + self._text + effect + self._runs[arm][:, None]
        return np.asarray(losses * (self.study.block_size - 1))


def measure(*arguments: Any, base_ppl: float | None = None) -> dict[str, Replicated]:
    found = replicated(cast("ConfirmLosses", Invented(*arguments)), base_ppl)
    return {r.claim: r for r in found}


def effects(measured: Replicated) -> dict[str, FaultEffect]:
    return {e.fault: e for e in measured.faults}


def _said(found: Sequence[FaultEffect], *published: float) -> str:
    return _says(found, published).replace("\N{MINUS SIGN}", "-")


def alone(measured: Replicated, fault: str) -> Change:
    change = effects(measured)[fault].alone
    assert change is not None
    return change


def test_a_fault_alone_is_the_change_that_it_makes_to_the_claim() -> None:
    """Learnable arms in bf16 are 3 % worse; all others are as without bf16."""
    worse = np.log(1.03)
    found = measure(
        {"learnable_only_bf16": worse, "learnable_published": worse, "learnable_clean": 0.0}
    )
    claim = found["learnable boundaries"]
    assert alone(claim, "adapter in bf16").change == pytest.approx(3)
    assert effects(claim)["adapter in bf16"].shares == pytest.approx((100 * 3 / 2.26,))
    off = effects(claim)["adapter in bf16"].off
    assert off is not None
    assert off.change == pytest.approx(100 * (1 / 1.03 - 1))
    assert alone(claim, ALL_FAULTS).change == pytest.approx(3)
    assert alone(claim, "pads in the loss").change == pytest.approx(0)
    assert alone(found["DoRA"], "adapter in bf16").change == pytest.approx(0)


def test_what_both_arms_of_a_claim_share_is_no_effect() -> None:
    """Pads halve every loss, so no claim changes."""
    for claim in measure({"pads": -2.0, "published": -2.0}).values():
        assert alone(claim, "pads in the loss").change == pytest.approx(0)


def test_rows_of_another_number_than_blocks_are_noted() -> None:
    """As with all of the test split: the tokens of 30 blocks make 50 padded rows."""

    class Unlimited(Invented):
        def blocks(self, arm: str, *rest: Any) -> npt.NDArray[np.float64]:
            losses = super().blocks(arm, *rest)
            padded = self.study.arms[arm].config.get("replication_pads")
            return np.pad(losses, ((0, 0), (0, 20)), "edge") if padded else losses

    for measured in replicated(cast("ConfirmLosses", Unlimited({})), None):
        assert effects(measured)["pads in the loss"].alone is None
        assert alone(measured, "adapter in bf16").change == pytest.approx(0)
        assert measured.note == (
            "Effects between blocks of text and padded rows are not measured: the test split has "
            "30 blocks and 50 rows, and they are paired. Set test_blocks to at most 30."
        )
    assert {r.note for r in measure({}).values()} == {""}


def test_clean_and_published_changes_are_those_of_their_arms() -> None:
    found = measure({"global_clean": np.log(0.98), "global_published": np.log(0.8)})
    claim = found["global landmarks"]
    assert (claim.clean.change, claim.protocol.change) == pytest.approx((-2, -20))
    assert effects(claim)[ALL_FAULTS].shares[0] == pytest.approx(
        100 * (100 * 0.8 / 0.98 - 100) / -9.19
    )


def test_mean_of_perplexities_matters_where_the_gain_depends_on_the_block() -> None:
    class Uneven(Invented):
        def blocks(self, arm: str, *rest: Any) -> npt.NDArray[np.float64]:
            gain = np.where(np.arange(BLOCKS) < 15, -0.1, 0.1) if "fixed" in arm else 0.0
            level = np.where(np.arange(BLOCKS) < 15, 2.0, -2.0)
            return super().blocks(arm, *rest) + (level + gain) * (self.study.block_size - 1)

    found = replicated(cast("ConfirmLosses", Uneven({})), None)[0]
    easy, hard = np.exp(2.0), np.exp(6.0)
    by_hand = (easy * np.exp(0.1) + hard * np.exp(-0.1)) / (easy + hard)
    assert found.clean.change == pytest.approx(0)
    assert alone(found, MEAN_OF_PPL).change == pytest.approx(100 * (by_hand - 1))


def test_single_seed_has_no_shift_and_grows_with_the_spread_of_runs() -> None:
    quiet, loud = (alone(measure({}, 0.1, sd)["DoRA"], SINGLE_SEED) for sd in (0.001, 0.01))
    assert quiet.change == loud.change == 0
    assert 0.1 < quiet.high < 1 < loud.high < 10
    assert loud.low < 0 < loud.high


def test_bare_base_as_reference_is_the_gain_of_lora_itself() -> None:
    found = measure({}, base_ppl=float(np.exp(4.5)))
    change = alone(found["landmarks with fixed buckets"], BARE_BASE)
    assert change.change == pytest.approx(100 * (np.exp(-0.5) - 1))
    assert all(BARE_BASE not in effects(found[c]) for c in ("DoRA", "global landmarks"))


def test_a_missing_arm_leaves_its_row_empty() -> None:
    losses = Invented({})
    values = {**replication.STUDY, "arms": {**replication.STUDY["arms"]}}
    del values["arms"]["dora_only_pads"]
    losses.study = Study.from_dict(values)
    (dora,) = [r for r in replicated(cast("ConfirmLosses", losses), None) if r.claim == "DoRA"]
    assert effects(dora)["pads in the loss"].alone is None
    assert effects(dora)["adapter in bf16"].alone is not None


def test_intervals_cover_an_effect_that_is_there() -> None:
    """Seeds differ by 1 %, the text by 30 %; the fault makes 5 %."""
    effect = alone(
        measure({"global_only_pooling": np.log(0.95)}, 0.3, 0.01)["global landmarks"],
        "pooling over future tokens",
    )
    assert effect.low < -5 < effect.high
    assert effect.high - effect.low < 10


@pytest.mark.parametrize(
    ("change", "low", "sentence"),
    [
        (-19, -20, "Enough alone to turn no difference into -18.37 %: big (-19.00 % PPL [-20.00, "),
        (
            -14,
            -19,
            "No single fault is shown to be large enough to produce -18.37 % where there is no "
            "difference. Their intervals do not "
            "exclude it: big (-14.00 % PPL [-19.00, ",
        ),
        (
            -14,
            -15,
            "No single fault is large enough to produce -18.37 % where there is no difference. "
            "The nearest is big (-14",
        ),
    ],
)
def test_sentence_names_the_faults_that_reach_the_figure(
    change: float, low: float, sentence: str
) -> None:
    found = [
        FaultEffect(ALL_FAULTS, Change(-50, -60, -40), None),
        FaultEffect("small", Change(-1, -2, 0), None),
        FaultEffect("big", Change(change, low, -10), None),
        FaultEffect("worse", Change(30, 20, 40), None),
        FaultEffect("unmeasured", None, None),
    ]
    assert _said(found, -18.37).startswith(sentence)


def test_sentence_for_a_worsening_looks_at_the_upper_end() -> None:
    found = [FaultEffect("a", Change(1, -9, 3), None), FaultEffect("b", Change(1, -9, 2), None)]
    assert "do not exclude it: a (" in _said(found, 2.26)


def test_chance_is_enough_where_it_reaches_as_far_as_the_figure() -> None:
    found = [FaultEffect(SINGLE_SEED, Change(0, -12, 13), None)]
    said = _said(found, -9.19, -18.37)
    assert said.startswith("Enough alone to turn no difference into -9.19 %: one unpaired seed")
    assert "No single fault is large enough to produce -18.37 % where" in said
    assert "there is no difference. The nearest is one" in said


def test_measured_claims_survive_the_results_file() -> None:
    """They are read back as they were, and results of earlier versions have none."""
    found = replicated(cast("ConfirmLosses", Invented({}, 0.1, 0.01)), 90.0)
    whole = Results("own", 90.0, 10, (), (), "", (), {}, replication=found)
    stored = json.loads(json.dumps(whole.to_dict()))
    assert typed(Results, stored).replication == found
    del stored["replication"]
    assert typed(Results, stored).replication == ()


class LostSearches(Invented):
    """Two searches, of which each faulty arm has lost the first."""

    def searches(self, arms: Sequence[str]) -> tuple[int, ...]:
        clean = set(arms) <= {arm for claim in CLAIMS for arm in claim.pair(frozenset())}
        return (0, 1) if clean else (1,)


def test_arms_are_paired_in_the_searches_that_both_have() -> None:
    effects = {"fixed": -0.02}
    whole, lost = (
        {r.claim: r for r in replicated(cast("ConfirmLosses", kind(effects)), None)}
        for kind in (Invented, LostSearches)
    )
    assert lost.keys() == whole.keys()
    for claim, replication_ in lost.items():
        assert replication_.clean.change == pytest.approx(whole[claim].clean.change)
