"""LaTeX of tables compiles and prints what the sheet says, whatever its cells hold."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latex_reader import plain, read_table

from studies.reporting.paper.latex import latex_figure, latex_table, latex_text
from studies.reporting.tables import Sheet

ODD = "a_b & c% #1 {x} ~ ^ \\ $y$ <z> | é"
SHEET = Sheet(
    columns=("arm", "test PPL", "empty", "vs base_line [95 %]", "reason"),
    rows=(
        (ODD, "1,234", "", "-0.69 % [-1.14, -0.24]", "loss is nan"),
        ("[fixed]", "218.406", "", "+0.00 % [-0.10, +0.09]", ""),
        ("*", "nan", "", "-", "--flag 1e-05"),
    ),
    caption="Changes in %; gray: lost.",
    strong=frozenset({0}),
    faint=frozenset({2}),
)


def turned(rows: list[list[str]]) -> list[list[str]]:
    return [list(row) for row in zip(*rows, strict=True)]


def cells(sheet: Sheet) -> list[list[str]]:
    """The titles and cells of a sheet's columns that hold any text."""
    kept = [i for i in range(len(sheet.columns)) if any(row[i] for row in sheet.rows)]
    return [[row[i] for i in kept] for row in (sheet.columns, *sheet.rows)]


def test_table_prints_the_cells_of_the_sheet() -> None:
    table = read_table(latex_table(SHEET, title="Arms", label="tab:own-arms"))
    assert (table.environment, table.alignment) == ("tabular", "lrrl")
    assert table.rows == cells(SHEET)
    assert (table.caption, table.label) == ("Arms. Changes in %; gray: lost.", "tab:own-arms")
    assert table.packages == ("booktabs", "xcolor")


def test_strong_rows_are_bold_and_faint_rows_gray() -> None:
    source = latex_table(SHEET, title="Arms", label="tab:own")
    assert r"\textbf{1,234} & \textbf{$-$0.69 \% [$-$1.14, $-$0.24]}" in source
    assert r"{[}fixed] & 218.406 & +0.00 \% [$-$0.10, +0.09] &  \\" in source
    assert r"\textcolor{gray}{{*}} & \textcolor{gray}{nan}" in source


def test_wide_sheet_is_turned_if_that_makes_it_narrower() -> None:
    columns = tuple(f"column number {i}" for i in range(12))
    sheet = Sheet(columns, (tuple(f"{i}.5" for i in range(12)),) * 3)
    table = read_table(latex_table(sheet, title="Wide", label="tab:wide"))
    assert table.rows == turned(cells(sheet))
    assert table.alignment == "lrrr"
    assert table.packages == ("booktabs",)


def test_sheet_that_is_a_little_too_wide_is_shrunk_to_the_page() -> None:
    sheet = Sheet(tuple("abcde"), (tuple("0123456789" * 2 for _ in range(5)),) * 12)
    source = latex_table(sheet, title="Wide", label="tab:wide")
    assert read_table(source).rows == cells(sheet)
    assert r"\begin{adjustbox}{max width=\textwidth}" in source
    assert (read_table(source).packages, read_table(source).parts) == (("booktabs", "adjustbox"), 1)


def test_sheet_that_is_much_too_wide_is_set_in_parts() -> None:
    row = ("name", *(f"{i}" * 20 for i in range(9)))
    sheet = Sheet(("comparison", *"abcdefghi"), (row,) * 9, caption="All of it.")
    source = latex_table(sheet, title="Wide", label="tab:wide")
    table = read_table(source)
    assert (table.rows, table.parts) == (cells(sheet), 3)  # 4, 4 and 1 of the columns
    assert r"\footnotesize" in source
    assert (table.environment, table.packages) == ("tabular", ("booktabs",))
    assert (table.caption, table.alignment) == ("Wide. All of it.", "l" + 9 * "r")
    assert max(map(len, source.splitlines())) < 120


def test_long_and_wide_sheet_is_set_in_parts_that_break_across_pages() -> None:
    row = ("name", *("0123456789" * 2 for _ in range(9)))
    sheet = Sheet(("trial", *"abcdefghi"), (row,) * 30)
    source = latex_table(sheet, title="Trials", label="tab:trials")
    table = read_table(source)
    assert (table.rows, table.parts, table.environment) == (cells(sheet), 3, "longtable")
    assert source.count(r"\addtocounter{table}{-1}") == 2  # one number for all parts
    assert source.count(r"\caption{") == 1


def test_long_sheet_breaks_across_pages() -> None:
    sheet = Sheet(("trial", "eval PPL"), tuple((f"fixed-{i:04d}", f"{i}.5") for i in range(60)))
    table = read_table(latex_table(sheet, title="Trials", label="tab:trials"))
    assert (table.environment, table.packages) == ("longtable", ("booktabs", "longtable"))
    assert table.rows == cells(sheet)


@given(st.text(alphabet=st.characters(max_codepoint=126, min_codepoint=32)))
def test_any_ascii_text_is_printed_as_it_is(text: str) -> None:
    same = {'"': "''"}  # LaTeX's default font has no straight quotes
    expected = "".join(same.get(c, c) for c in text)
    assert plain(latex_text(text)) == expected


@given(st.text())
def test_any_text_becomes_ascii_that_compiles(text: str) -> None:
    latex = latex_text(text)
    assert latex.isascii()
    assert "\n" not in latex
    braces = re.sub(r"\\[{}]", "", latex)
    assert braces.count("{") == braces.count("}")
    assert re.sub(r"\\\$", "", latex).count("$") % 2 == 0


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("été Ärm ñ ç å ø", r"\'{e}t\'{e} \"{A}rm \~{n} \c{c} \r{a} \o{}"),
        ("8 \N{RIGHTWARDS ARROW} 16", r"8 $\rightarrow$ 16"),
        ("\N{MINUS SIGN}1.26 ± 0.1", r"$-$1.26 $\pm$ 0.1"),
        ("λ=0.1, Δ", r"$\lambda$=0.1, $\Delta$"),
        ("学", r"\texttt{U+5B66}"),
        ("-0.5 a-1 1e-05 [-nan, -inf] x-y", "$-$0.5 a-1 1e-05 [$-$nan, $-$inf] x-y"),
        ("a\N{EN DASH}b --- c", r"a\textendash{}b -{}-{}- c"),
        ("x\ty\x1b", r"x y\texttt{U+001B}"),
    ],
)
def test_signs_beyond_ascii_have_commands(text: str, latex: str) -> None:
    assert latex_text(text) == latex


def test_figure_has_caption_and_label() -> None:
    source = latex_figure("figures/x.pdf", "50 % of a_b", label="fig:x")
    size = r"width=\textwidth,height=0.8\textheight,keepaspectratio"
    assert rf"\includegraphics[{size}]{{figures/x.pdf}}" in source
    assert "\\caption{50 \\% of a\\_b}\n\\label{fig:x}\n\\end{figure}\n" in source


@pytest.mark.parametrize("compiler", ["pdflatex", "tectonic", "lualatex"])
def test_table_compiles(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    body = latex_table(SHEET, title="Arms", label="tab:own-arms")
    packages = "\\usepackage{booktabs,adjustbox,longtable,xcolor}"
    page = f"\\documentclass{{article}}{packages}\\begin{{document}}{body}\\end{{document}}"
    (tmp_path / "page.tex").write_text(page)
    options = ["-halt-on-error", "-interaction=nonstopmode"] if compiler != "tectonic" else []
    subprocess.run([compiler, *options, "page.tex"], cwd=tmp_path, check=True, timeout=100)
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
