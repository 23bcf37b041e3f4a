"""Text and tables as LaTeX that every engine compiles: pure ASCII, booktabs, nothing left bare."""

import re
import unicodedata
from collections.abc import Sequence

from studies.reporting.tables import WORDS, Sheet

_SPECIAL = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # In LaTeX's default encoding, these print as other characters.
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "`": "{`}",
}
_SIGNS = {
    "\N{MINUS SIGN}": "$-$",
    "±": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "÷": r"$\div$",
    "·": r"$\cdot$",
    "°": r"$^\circ$",
    "→": r"$\rightarrow$",
    "←": r"$\leftarrow$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≠": r"$\neq$",
    "≈": r"$\approx$",
    "∞": r"$\infty$",
    "\N{EN DASH}": r"\textendash{}",
    "\N{EM DASH}": r"\textemdash{}",
    "…": r"\ldots{}",
    "\N{LEFT SINGLE QUOTATION MARK}": "{`}",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": "``",
    "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
    "\N{NO-BREAK SPACE}": "~",
    "§": r"\S{}",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "\N{LATIN SMALL LETTER DOTLESS I}": r"\i{}",
    "\N{MICRO SIGN}": r"$\mu$",
}
_ACCENTS = {  # combining characters
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r",
    "\u030b": "H",
    "\u030c": "v",
    "\u0327": "c",
}
_GREEK = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"),
    *("lamda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi"),
    "omega",
)
_GREEK_CAPITALS = {"gamma", "delta", "theta", "lamda", "xi", "pi", "sigma", "phi", "psi", "omega"}
_NEGATIVE = re.compile(r"(?<![\w.)\]-])-(?=[\d.]|nan|inf)")
_LONG = 45  # rows above which a table may break across pages
_SHRUNK = "\\begin{adjustbox}{max width=\\textwidth}"
_FITTED = "width=\\textwidth,height=0.8\\textheight,keepaspectratio"
_WIDE = 90  # characters that fit a page of text, about
_LEAST_SCALE = 0.7  # a table that would have to be shrunk further is set in parts
_SMALL = 1.2  # times as many characters fit a page in the size of parts, ``\\footnotesize``


def latex_text(text: str) -> str:
    """Return a text as LaTeX, with the minus signs of its numbers.

    A character that LaTeX's default fonts lack is written as its code point, such as U+5B66.
    """
    signed = _NEGATIVE.sub("\N{MINUS SIGN}", unicodedata.normalize("NFC", text))
    latex = re.sub("-(?=-)", "-{}", "".join(map(_character, signed)))
    # At the start of a row, these would be read as an argument of the line break before it.
    return f"{{{latex[0]}}}{latex[1:]}" if latex[:1] in ("[", "*") else latex


def _character(c: str) -> str:
    if c in _SPECIAL or c in _SIGNS:
        return _SPECIAL.get(c) or _SIGNS[c]
    if c in "\t\n\r":
        return " "
    return c if " " <= c <= "~" else _accented(c) or _greek(c) or rf"\texttt{{U+{ord(c):04X}}}"


def _accented(c: str) -> str:
    """Return a letter with an accent; "" if it is not one that LaTeX can build."""
    letter, *accents = list(unicodedata.normalize("NFD", c))
    if not letter.isascii() or not letter.isalpha() or len(accents) != 1:
        return ""
    accent = _ACCENTS.get(accents[0])
    return f"\\{accent}{{{letter}}}" if accent else ""


def _greek(c: str) -> str:
    """Return a Greek letter of LaTeX's mathematics; "" for any other character."""
    match = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER ([A-Z]+)", unicodedata.name(c, ""))
    if match is None or (name := match[2].lower()) not in _GREEK:
        return ""
    if match[1] == "CAPITAL" and name not in _GREEK_CAPITALS:
        return ""
    name = name.replace("lamda", "lambda")
    return f"$\\{name if match[1] == 'SMALL' else name.capitalize()}$"


def latex_figure(path: str, caption: str, *, label: str) -> str:
    """Return a figure environment that includes a file, as large as fits the page with a caption.

    Args:
        path: Path of the file.
        caption: Its caption.
        label: Label for ``\\ref``, of letters, digits, colons and hyphens.
    """
    lines = (
        "\\begin{figure}[tbp]",
        "\\centering",
        f"\\includegraphics[{_FITTED}]{{{path}}}",
        f"\\caption{{{latex_text(caption)}}}",
        f"\\label{{{label}}}",
        "\\end{figure}",
        "",
    )
    return _needs("graphicx") + "\n".join(lines)


def latex_table(sheet: Sheet, *, title: str, label: str) -> str:
    """Return a sheet as a table environment with a caption and a label.

    A sheet too wide for a page is turned if it has few rows and many columns. If it is still a
    little too wide, it is shrunk to the page; if it is much too wide, its columns are set in parts
    one below the other, each with the first column. A sheet of many rows becomes a ``longtable``,
    which breaks across pages.

    Args:
        sheet: The sheet; columns without any text are left out.
        title: What the table lists, which opens the caption.
        label: Label for ``\\ref``, of letters, digits, colons and hyphens.
    """
    grid = _grid(sheet)
    across = list(zip(*grid, strict=True))
    turned = _width(grid) > max(_WIDE, _width(across)) and len(grid[0]) >= 2 * len(grid)
    plain, rows = (across if turned else grid), _styled_rows(sheet, turned)
    alignment = _alignment(sheet, len(rows[0]), turned)
    parts = _parts(plain, shrinkable=len(rows) <= _LONG)
    most = _WIDE if len(parts) == 1 else _SMALL * _WIDE
    tables = [_Part(alignment, rows, part, _width(_chosen(plain, part)) > most) for part in parts]
    caption = latex_text(f"{title}. {sheet.caption}".strip())
    place = f"\\caption{{{caption}}}\n\\label{{{label}}}"
    colored = ["xcolor"] if sheet.faint else []
    if len(rows) * len(tables) > _LONG:
        return _needs("booktabs", "longtable", *colored) + _long(place, tables)
    shrunk = ["adjustbox"] if any(part.wide for part in tables) else []
    size = "\\footnotesize\n" if len(parts) > 1 else ""
    body = "\n\\medskip\n\n".join(part.tabular() for part in tables)
    needs = _needs("booktabs", *shrunk, *colored)
    opening = f"\\begin{{table}}[tbp]\n\\centering\n{place}\n\n\\medskip\n{size}"
    return f"{needs}{opening}{body}\\end{{table}}\n"


def _needs(*packages: str) -> str:
    return f"% Needs \\usepackage{{{','.join(packages)}}}\n"


def _parts(grid: Sequence[tuple[str, ...]], *, shrinkable: bool) -> list[list[int]]:
    """Return the columns of each part of a table; all in one part if they fit a page.

    Args:
        grid: Titles and cells as plain text.
        shrinkable: Whether a table that is a little too wide may be shrunk.
    """
    every = list(range(len(grid[0])))
    most = _WIDE / _LEAST_SCALE if shrinkable else _WIDE
    if _width(grid) <= most:
        return [every]
    parts = [every[:2]]
    for column in every[2:]:
        if _width(_chosen(grid, [*parts[-1], column])) <= _SMALL * _WIDE:
            parts[-1].append(column)
        else:
            parts.append([0, column])
    return parts


def _chosen(grid: Sequence[tuple[str, ...]], columns: Sequence[int]) -> list[tuple[str, ...]]:
    return [tuple(row[i] for i in columns) for row in grid]


class _Part:
    """Some columns of a table as LaTeX, the first row as its head.

    Args:
        alignment: Alignment of all columns.
        rows: All cells as LaTeX.
        columns: Indices of the columns of this part.
        wide: Whether the part has to be shrunk to fit a page.
    """

    def __init__(
        self,
        alignment: str,
        rows: Sequence[tuple[str, ...]],
        columns: Sequence[int],
        wide: bool,
    ) -> None:
        self.alignment, self.wide = "".join(alignment[i] for i in columns), wide
        lines = [" & ".join(row) for row in _chosen(rows, columns)]
        self.head, *self.lines = (f"{line} \\\\" for line in lines)

    def tabular(self) -> str:
        """Return the part as a ``tabular``, shrunk to the page if it is wide."""
        lines = ["\\toprule", self.head, "\\midrule", *self.lines, "\\bottomrule", ""]
        ruled = "\n".join(lines)
        tabular = f"\\begin{{tabular}}{{{self.alignment}}}\n{ruled}\\end{{tabular}}\n"
        return f"{_SHRUNK}\n{tabular}\\end{{adjustbox}}\n" if self.wide else tabular

    def longtable(self, place: str) -> str:
        """Return the part as a ``longtable``; without a place it has no number and caption."""
        opening = "\n".join(["\\toprule", self.head, "\\midrule"])
        lines = [
            *([] if place else ["\\addtocounter{table}{-1}"]),
            f"\\begin{{longtable}}{{{self.alignment}}}",
            *([f"{place} \\\\"] if place else []),
            opening,
            "\\endfirsthead",
            opening,
            "\\endhead",
            "\\bottomrule",
            "\\endfoot",
            *self.lines,
            "\\end{longtable}",
            "",
        ]
        return "\n".join(lines)


def _long(place: str, parts: Sequence[_Part]) -> str:
    """Return parts as tables that break across pages and share one number and caption."""
    tables = "".join(part.longtable("" if n else place) for n, part in enumerate(parts))
    return f"\\begingroup\\footnotesize\n{tables}\\endgroup\n" if len(parts) > 1 else tables


def _grid(sheet: Sheet) -> list[tuple[str, ...]]:
    """Return titles and cells of the columns in use."""
    used = sheet.used()
    return [tuple(row[i] for i in used) for row in (sheet.columns, *sheet.rows)]


def _width(grid: Sequence[tuple[str, ...]]) -> int:
    """Return the width of a table in characters, with the space between its columns."""
    columns = zip(*grid, strict=True)
    return sum(max(map(len, column)) + 2 for column in columns)


def _styled_rows(sheet: Sheet, turned: bool) -> list[tuple[str, ...]]:
    """Return rows of LaTeX cells: emphasized ones bold, faint ones gray."""
    titles, *rows = _grid(sheet)
    styled = [tuple(map(latex_text, titles))]
    for number, row in enumerate(rows):
        styled.append(tuple(_styled(cell, number, sheet) for cell in row))
    return list(zip(*styled, strict=True)) if turned else styled


def _styled(cell: str, row: int, sheet: Sheet) -> str:
    text = latex_text(cell)
    if not text or row not in sheet.strong | sheet.faint:
        return text
    return f"\\textbf{{{text}}}" if row in sheet.strong else f"\\textcolor{{gray}}{{{text}}}"


def _alignment(sheet: Sheet, count: int, turned: bool) -> str:
    """Return the columns' alignment: words to the left, numbers to the right."""
    if turned:
        return "l" + "r" * (count - 1)
    titles = [sheet.columns[i] for i in sheet.used()]
    return "".join("l" if i == 0 or t in WORDS else "r" for i, t in enumerate(titles))
