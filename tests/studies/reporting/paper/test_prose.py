"""Sentences read the same in Markdown and in LaTeX."""

import pytest
from latex_reader import plain

from studies.reporting.paper.prose import cite, cited, code, latex, markdown

TEXT = f"With {code('a_b & `c`')} at 50 % Holm{cite('holm1979simple')} and{cite('b', 'a')}."


def test_markdown_has_code_and_pandoc_citations() -> None:
    expected = "With `` a_b & `c` `` at 50 % Holm [@holm1979simple] and [@b; @a]."
    assert markdown(TEXT) == expected


def test_latex_escapes_names_and_cites_by_key() -> None:
    expected = r"With \texttt{a\_b \& {`}c{`}} at 50 \% Holm~\cite{holm1979simple} and~\cite{b,a}."
    assert latex(TEXT) == expected


def test_each_key_is_cited_once() -> None:
    assert cited(TEXT + cite("a")) == ["holm1979simple", "b", "a"]


@pytest.mark.parametrize("name", ["\ue000x\ue001y\ue002", "a\nb", "``", "{}$\\"])
def test_odd_names_stay_in_their_code(name: str) -> None:
    kept = " ".join(name.translate(dict.fromkeys(range(0xE000, 0xE003))).split())
    assert plain(latex(f"a {code(name)} b")) == f"a {kept} b"
    assert kept in markdown(f"a {code(name)} b")
