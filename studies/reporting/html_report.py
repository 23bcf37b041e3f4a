"""A study's results for readers: tables for the terminal, and one self-contained HTML file."""

import html
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from studies.analysis.results import Results
from studies.files.folder_files import write_atomically
from studies.process.terminal_text import shown
from studies.reporting.drawing import THEME, svg_text
from studies.reporting.sections import Part, Picture, Section, Table, Words, sections
from studies.reporting.tables import WORDS, Sheet, arms_sheet, searched_sheet
from studies.reporting.terminal import Drawing
from studies.spec.study import Study
from studies.trials.records import Record

_MANY = 40  # rows above which a table starts folded


def table(results: Results) -> Drawing:
    """Return the table of arms for the terminal.

    Args:
        results: Results of the study, from :func:`studies.analysis.results.gather`.
    """
    return Drawing(arms_sheet(results))


def verdict_lines(results: Results) -> list[str]:
    """Return the verdict as lines, one for each sentence or part that ends in a semicolon."""
    return re.split(r"(?<=[.;]) ", results.verdict)


def trial_table(records: Mapping[str, Record], study: Study) -> Drawing:
    """Return a table of all search trials and their parameters; the best of each arm is bold."""
    return Drawing(searched_sheet(records, study))


def write_html(results: Results, records: Mapping[str, Record], study: Study, path: Path) -> None:
    """Write the whole report as one HTML file that needs nothing else.

    Args:
        results: Results of the study.
        records: All trials and runs, by name.
        study: The study.
        path: Path of the file, which is replaced atomically.
    """
    body = [
        _head(results, study),
        *map(_section, sections(results, records, study, path.parent)),
        _framed("Provenance", _provenance(results.provenance)),
    ]
    write_atomically(path, _page(results.study, "\n".join(body)))


def _escape(text: str) -> str:
    """Return a text escaped for HTML, without control characters and lone surrogates."""
    return html.escape(shown(text))


def _html(sheet: Sheet) -> str:
    if not sheet.rows:
        return ""
    used = sheet.used()
    kinds = ["w" if sheet.columns[i] in WORDS else "n" for i in used]
    titles = [_escape(sheet.columns[i]).replace("_", "_<wbr/>") for i in used]
    head = "".join(f'<th class="{k}">{title}</th>' for title, k in zip(titles, kinds, strict=True))
    rows = []
    for number, row in enumerate(sheet.rows):
        style = (
            "strong" if number in sheet.strong else "faint" if number in sheet.faint else "plain"
        )
        cells = "".join(
            f'<td class="{k}">{_escape(row[i])}</td>' for i, k in zip(used, kinds, strict=True)
        )
        rows.append(f'<tr class="{style}">{cells}</tr>')
    caption = f"<caption>{_escape(sheet.caption)}</caption>" if sheet.caption else ""
    body = "\n".join(rows)
    inner = f"{caption}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>"
    return f'<div class="wide"><table>{inner}</table></div>'


def _section(section: Section) -> str:
    """Return a section as HTML; "" for one without parts."""
    return _framed(section.title, *map(_part, section.parts)) if section.parts else ""


def _part(part: Part) -> str:
    match part:
        case Words():
            return f'<h3>{_escape(part.title)}</h3><p class="says">{_escape(part.says)}</p>'
        case Picture():
            return _figure(part)
        case Table():
            return _folded(part) if part.heading else _html(part.sheet)


def _folded(table: Table) -> str:
    if not table.sheet.rows:
        return ""
    opened = ' open="open"' if len(table.sheet.rows) <= _MANY else ""
    summary = f"<summary>{_escape(table.heading)} ({len(table.sheet.rows)})</summary>"
    return f"<details{opened}>{summary}{_html(table.sheet)}</details>"


def _framed(title: str, *parts: str) -> str:
    inside = "\n".join(p for p in parts if p) or '<p class="none">Nothing to show yet.</p>'
    return f"<section><h2>{_escape(title)}</h2>\n{inside}</section>"


def _figure(picture: Picture) -> str:
    if picture.figure is None:
        return ""
    caption = _escape(f"{picture.caption} {picture.hint}".strip())
    svg = shown(svg_text(picture.figure))
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def _head(results: Results, study: Study) -> str:
    what = (
        f"{study.definition}: {study.model} on {study.data}, blocks of {study.block_size} tokens; "
        f"{study.searches} search{'es' * (study.searches > 1)} of up to {study.trials} trials "
        f"per arm, {study.max_steps} steps per trial, "
        f"{study.seeds} paired seed{'s' * (study.seeds > 1)} per search"
    )
    notes = "".join(f"<li>{_escape(n)}</li>" for n in results.notes)
    listed = f'<ul class="notes">{notes}</ul>' if notes else ""
    title = _escape(results.study)
    verdict = " ".join(f"<span>{_escape(line)}</span>" for line in verdict_lines(results))
    opening = f'<h1>{title}</h1><p class="what">{_escape(what)}</p>'
    return f'<header>{opening}<p class="verdict">{verdict}</p>{listed}</header>'


def _provenance(provenance: Mapping[str, Any]) -> str:
    rows = "".join(f"<dt>{_escape(k)}</dt><dd>{_escape(v)}</dd>" for k, v in _flat(provenance))
    return f"<dl>{rows}</dl>" if rows else ""


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield (
                f"{prefix}{key}",
                value if isinstance(value, str) else json.dumps(value, default=str),
            )


def _page(title: str, body: str) -> str:
    """Return a complete HTML document that is well-formed XML and loads no other resources."""
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in THEME.items()) for i in (0, 1))
    on_dark = f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    theme = f":root{{{light}}}\n{on_dark}\n@media print{{:root{{{light}}}}}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"/><title>{_escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<style>
{theme}
{_CSS}</style></head>
<body>
{body}
</body></html>
"""


_CSS = """\
:root{color-scheme:light dark}
body{margin:0 auto;max-width:66rem;padding:2.5rem 1.5rem 4rem;
  background:var(--paper);color:var(--ink);
  font:16px/1.5 system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.8rem 0 .7rem;padding-bottom:.3rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1.8rem 0 .3rem}
.says{margin:.3rem 0 .8rem;max-width:54rem}
.what,.none,caption,figcaption{color:var(--soft);font-size:.86rem}
.what{margin:.3rem 0 1.2rem}
.verdict{font-size:1.15rem;line-height:1.55;margin:0;padding:.1rem 0 .1rem 1rem;
  border-left:4px solid var(--arm1)}
.verdict span{display:block}
.verdict span:first-child{font-weight:650}
.verdict span:last-child:not(:first-child){font-size:.92rem;color:var(--soft);margin-top:.3rem}
td:first-child{white-space:nowrap}
.notes{margin:1.2rem 0 0;padding-left:1.2rem;font-size:.92rem}
.wide{overflow-x:auto;margin:.6rem 0 1.4rem}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;
  min-width:50%}
caption{caption-side:bottom;text-align:left;padding-top:.5rem}
th,td{padding:.3rem .8rem .3rem 0;vertical-align:top;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--soft);vertical-align:bottom}
.n{text-align:right}td.n{white-space:nowrap}.w{text-align:left}
.strong{font-weight:700}.faint{color:var(--soft)}
figure{margin:1.2rem 0 1.6rem}
svg{display:block;width:100%;height:auto;max-width:100%}
svg text{font-family:inherit!important}
figcaption{margin-top:.4rem;max-width:54rem}
summary{cursor:pointer;font-weight:600;margin:.6rem 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.2rem;margin:0;
  font-size:.84rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere;font-family:ui-monospace,Menlo,Consolas,monospace}
"""
