"""A strict reader of the LaTeX that an export writes: it accepts nothing that might not compile."""

import re
import unicodedata
from dataclasses import dataclass

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[{}$]|[^\\{}$]+", re.DOTALL)
_SYMBOLS = {
    "textbackslash": "\\",
    "textasciitilde": "~",
    "textasciicircum": "^",
    "textless": "<",
    "textgreater": ">",
    "textbar": "|",
    "textendash": "\N{EN DASH}",
    "textemdash": "\N{EM DASH}",
    "ldots": "…",
    "ss": "ß",
    "o": "ø",
    "l": "ł",
    "ae": "æ",
    "S": "§",
}
_ACCENTS = {
    "`": "\u0300",
    "'": "\u0301",
    "^": "\u0302",
    "~": "\u0303",
    '"': "\u0308",
    "r": "\u030a",
    "c": "\u0327",
    "v": "\u030c",
}
_MATH = {
    "-": "-",
    r"\pm": "±",
    r"\times": "\N{MULTIPLICATION SIGN}",
    r"\rightarrow": "→",
    r"\lambda": "λ",
    r"\Delta": "Δ",
    r"\leq": "≤",
}


@dataclass(frozen=True)
class ReadTable:
    """A table as a reader sees it.

    Attributes:
        environment: ``tabular`` or ``longtable``.
        packages: packages that the file says it needs.
        caption: its caption as plain text.
        label: its label.
        alignment: one letter per column.
        rows: cells as plain text, the titles first; those of several parts side by side.
        parts: number of tables one below the other that it consists of.
    """

    environment: str
    packages: tuple[str, ...]
    caption: str
    label: str
    alignment: str
    rows: list[list[str]]
    parts: int = 1


def read_table(source: str) -> ReadTable:
    """Read a table environment.

    Raises:
        ValueError: something in it is not plain booktabs LaTeX.
    """
    first, _, rest = source.partition("\n")
    needs = re.fullmatch(r"% Needs \\usepackage\{([a-z,]+)\}", first)
    if needs is None or not source.isascii():
        raise ValueError(f"no packages, or not ASCII: {first}")
    _check_environments(rest)
    openings = re.findall(r"\\begin\{(tabular|longtable)\}\{([lr]+)\}\n", rest)
    captions = re.findall(r"^\\caption\{(.*)\}$", rest, re.MULTILINE)
    labels = re.findall(r"^\\label\{([a-z0-9:-]+)\}", rest, re.MULTILINE)
    if len({kind for kind, _ in openings}) != 1 or len(captions) != 1 or len(labels) != 1:
        raise ValueError("no tabular, or not one caption and label")
    kind, alignment = openings[0][0], openings[0][1] + "".join(a[1:] for _, a in openings[1:])
    parts = [[_cells(line) for line in lines] for lines in _parts(rest, kind)]
    for (_, letters), rows in zip(openings, parts, strict=True):
        if {len(row) for row in rows} != {len(letters)}:
            raise ValueError(f"rows differ in length: {letters}, {rows}")
    if any([row[0] for row in rows] != [row[0] for row in parts[0]] for rows in parts):
        raise ValueError("parts of a table differ in their first column")
    joined = [
        first + [cell for rest_of_row in others for cell in rest_of_row[1:]]
        for first, *others in zip(*parts, strict=True)
    ]
    packages = tuple(needs[1].split(","))
    return ReadTable(kind, packages, plain(captions[0]), labels[0], alignment, joined, len(parts))


def plain_prose(source: str) -> str:
    """Return paragraphs of LaTeX as the text that they print, without titles and citations."""
    bare = re.sub(r"~\\cite\{[a-z0-9,]+\}|^\\paragraph\{[A-Za-z ]+\.\}", "", source, flags=re.M)
    return plain(bare)


def _check_environments(text: str) -> None:
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{([a-z]+)\}", text):
        if kind == "begin":
            opened.append(name)
        elif not opened or opened.pop() != name:
            raise ValueError(f"\\end{{{name}}} closes nothing")
    if opened:
        raise ValueError(f"{opened} never end")


def _parts(text: str, environment: str) -> list[list[str]]:
    """Return the lines of the rows of each part of a table, the titles once."""
    head = r"\\toprule\n(.*?)\n\\midrule\n"
    body = r"(.*?)\\bottomrule\n\\end\{tabular\}"
    if environment == "longtable":
        body = r"\\endfirsthead\n.*?\\endhead\n\\bottomrule\n\\endfoot\n(.*?)\\end\{longtable\}"
    parts = re.findall(head + body, text, re.DOTALL)
    if not parts:
        raise ValueError("no rules, or in the wrong order")
    return [[titles, *lines.splitlines()] for titles, lines in parts]


def _cells(line: str) -> list[str]:
    if not line.endswith(r" \\") or line[0] in "[*":
        raise ValueError(f"a row without an end, or one that LaTeX reads as an argument: {line}")
    return [plain(cell) for cell in re.split(r"(?<!\\) & ", line.removesuffix(r" \\"))]


def plain(latex: str) -> str:
    """Return LaTeX as the text that it prints; minus signs as hyphens.

    Raises:
        ValueError: a special character is bare, a command unknown, or braces don't match.
    """
    tokens = _TOKEN.findall(latex)
    text, end = _group(tokens, 0, nested=False)
    if end != len(tokens):
        raise ValueError(f"braces don't match in {latex!r}")
    return unicodedata.normalize("NFC", text)


def _group(tokens: list[str], place: int, *, nested: bool) -> tuple[str, int]:
    """Return the text of a group and the place behind it."""
    parts: list[str] = []
    while place < len(tokens):
        token = tokens[place]
        if token == "}":
            if not nested:
                raise ValueError("a brace closes nothing")
            return "".join(parts), place + 1
        part, place = _item(tokens, place)
        parts.append(part)
    if nested:
        raise ValueError("a brace never closes")
    return "".join(parts), place


def _item(tokens: list[str], place: int) -> tuple[str, int]:
    token = tokens[place]
    if token == "{":
        return _group(tokens, place + 1, nested=True)
    if token == "$":
        end = tokens.index("$", place + 1)
        return _MATH["".join(tokens[place + 1 : end])], end + 1
    if not token.startswith("\\"):
        return _bare(token), place + 1
    name = token[1:]
    if name in "&%$#_{}":
        return name, place + 1
    if tokens[place + 1 : place + 2] != ["{"]:
        raise ValueError(f"{token} without braces")
    inside, end = _group(tokens, place + 2, nested=True)
    if name in _SYMBOLS and not inside:
        return _SYMBOLS[name], end
    if name in _ACCENTS and len(inside) == 1:
        return inside + _ACCENTS[name], end
    if name in ("textbf", "texttt"):
        return inside, end
    if name == "textcolor" and inside == "gray":
        return _item(tokens, end)
    raise ValueError(f"unknown command {token}")


def _bare(text: str) -> str:
    if found := re.search(r"[&%#_^~<>|\"]|--", text):
        raise ValueError(f"{found[0]!r} is bare in {text!r}")
    return text
