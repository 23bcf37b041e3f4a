"""Parts of a report in HTML: escaped text, tables, sections, figures, and the whole page."""

import html

from matplotlib.figure import Figure

from studies.process.terminal_text import shown
from studies.reporting.figures.drawing import THEME, draw, themed
from studies.reporting.tables import WORDS, Sheet

_MANY = 40  # rows above which a table starts folded


def escape(text: str) -> str:
    """Return a text escaped for HTML, without control characters and lone surrogates."""
    return html.escape(shown(text))


def table_html(sheet: Sheet) -> str:
    """Return a table; empty for one without rows."""
    if not sheet.rows:
        return ""
    used = sheet.used()
    kinds = ["w" if sheet.columns[i] in WORDS else "n" for i in used]
    titles = [escape(sheet.columns[i]).replace("_", "_<wbr/>") for i in used]
    head = "".join(f'<th class="{k}">{title}</th>' for title, k in zip(titles, kinds, strict=True))
    rows = []
    for number, row in enumerate(sheet.rows):
        style = (
            "strong" if number in sheet.strong else "faint" if number in sheet.faint else "plain"
        )
        cells = "".join(
            f'<td class="{k}">{escape(row[i])}</td>' for i, k in zip(used, kinds, strict=True)
        )
        rows.append(f'<tr class="{style}">{cells}</tr>')
    caption = f"<caption>{escape(sheet.caption)}</caption>" if sheet.caption else ""
    body = "\n".join(rows)
    inner = f"{caption}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>"
    return f'<div class="wide"><table>{inner}</table></div>'


def folded(title: str, sheet: Sheet) -> str:
    """Return a table under a title that folds it; a long one starts folded."""
    if not sheet.rows:
        return ""
    opened = ' open="open"' if len(sheet.rows) <= _MANY else ""
    summary = f"<summary>{escape(title)} ({len(sheet.rows)})</summary>"
    return f"<details{opened}>{summary}{table_html(sheet)}</details>"


def section(title: str, *parts: str) -> str:
    """Return a section of the parts that are not empty."""
    inside = "\n".join(p for p in parts if p) or '<p class="none">Nothing to show yet.</p>'
    return f"<section><h2>{escape(title)}</h2>\n{inside}</section>"


def figure_html(figure: Figure | None, caption: str) -> str:
    """Return a figure with its caption; empty if there is nothing to draw."""
    return "" if figure is None else drawn_html(draw(figure), caption)


def drawn_html(svg: str, caption: str) -> str:
    """Return a drawn figure with its caption; empty for an empty drawing."""
    if not svg:
        return ""
    return f"<figure>{shown(themed(svg))}<figcaption>{escape(caption)}</figcaption></figure>"


def page(title: str, body: str) -> str:
    """Return a complete HTML document that is well-formed XML and loads no other resources."""
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in THEME.items()) for i in (0, 1))
    on_dark = f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    theme = f":root{{{light}}}\n{on_dark}\n@media print{{:root{{{light}}}}}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"/><title>{escape(title)}</title>
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
.next{margin:.8rem 0 0 1.25rem;font-size:.92rem}
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
