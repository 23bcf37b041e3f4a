"""Sentences that become Markdown and LaTeX alike, with names as code and citations by key."""

import re

from studies.reporting.paper.latex import latex_text

# Characters without a meaning, which no name holds once `code` has dropped them.
_CODE, _CITE, _END = "\ue000", "\ue001", "\ue002"
_SPAN = re.compile(f"([{_CODE}{_CITE}])([^{_END}]*){_END}")


def code(value: object) -> str:
    """Return a name or value to be set as code."""
    return f"{_CODE}{re.sub(f'[{_CODE}-{_END}]', '', ' '.join(str(value).split()))}{_END}"


def cite(*keys: str) -> str:
    """Return a citation of works by their keys, to stand after a word."""
    return f"{_CITE}{','.join(keys)}{_END}"


def cited(text: str) -> list[str]:
    """Return the keys that a text cites, in the order of their first citation."""
    keys = [k for kind, span in _SPAN.findall(text) if kind == _CITE for k in span.split(",")]
    return list(dict.fromkeys(keys))


def markdown(text: str) -> str:
    """Return sentences as Markdown, with citations as Pandoc reads them."""
    return _SPAN.sub(_markdown_span, text)


def latex(text: str) -> str:
    """Return sentences as LaTeX."""
    parts, end = [], 0
    for span in _SPAN.finditer(text):
        before = latex_text(text[end : span.start()])
        is_code = span[1] == _CODE
        inside = f"\\texttt{{{latex_text(span[2])}}}" if is_code else f"~\\cite{{{span[2]}}}"
        parts += [before, inside]
        end = span.end()
    return "".join([*parts, latex_text(text[end:])])


def _markdown_span(span: re.Match[str]) -> str:
    if span[1] == _CITE:
        return f" [{'; '.join(f'@{key}' for key in span[2].split(','))}]"
    longest = max(map(len, re.findall("`+", span[2])), default=0)
    fence, pad = "`" * (longest + 1), " " if "`" in span[2] else ""
    return f"{fence}{pad}{span[2]}{pad}{fence}"
