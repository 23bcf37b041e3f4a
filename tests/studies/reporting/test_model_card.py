"""The model card says what its perplexity was measured on, and names seeds as the study does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from made_studies import VALUES, make

from studies.reporting.model_card import model_card
from studies.reporting.winner_choice import Winner, find_winner

_KNOWN = {
    "model_fingerprint": "m",
    "model_revision": None,
    "data_fingerprint": "d",
    "study_fingerprint": "s",
}


def _winner(folder: Path, arm: str = "fixed", **changes: Any) -> Winner:
    make(folder, "end", **changes).close()
    winner = find_winner(folder, arm, None)
    return replace(winner, results=replace(winner.results, provenance=_KNOWN))


def test_card_of_a_padded_arm_says_which_perplexity_is_which(tmp_path: Path) -> None:
    arms = {**VALUES["arms"], "fixed": {"config": {"replication_pads": True}}}
    winner = _winner(tmp_path / "made", trials=1, arms=arms)
    card = model_card(winner, tmp_path / "out")
    assert winner.on_padded_rows
    assert f"Test perplexity of this adapter on padded rows: **{winner.ppl:,.4f}**." in card
    assert "(`replication_pads`). What `hylorada evaluate` measures is the perplexity on" in card
    assert "blocks of text, as is that of the base alone, 31.5000, and can't be compared" in card
    assert "measures the perplexity, on blocks of text instead of padded rows." in card


def test_card_of_another_arm_says_nothing_of_rows(tmp_path: Path) -> None:
    winner = _winner(tmp_path / "made")
    card = model_card(winner, tmp_path / "out")
    tokens = "base alone 31.5000 (372 tokens)."
    assert f"Test perplexity of this adapter: **{winner.ppl:,.4f}**, {tokens}" in card
    assert "`hylorada evaluate --adapter .` measures the perplexity again." in card
    assert "padded rows" not in card


def test_card_calls_seeds_by_their_names(tmp_path: Path) -> None:
    winner = _winner(tmp_path / "made", seed_list=[456, 42])
    card = model_card(winner, tmp_path / "out")
    assert "(paired seed 456)" in card
    assert "| paired seeds | 456, 42; this one 456; adapter's seed 456 |" in card
