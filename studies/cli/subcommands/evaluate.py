"""``hylorada evaluate``: the loss of a base, or of an adapter on it, on a text."""

import argparse
import math
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from studies.cli.command import Command
from studies.cli.options import add_json, add_study_fields, folder

if TYPE_CHECKING:
    from rich.console import Console

    from studies.runner.evaluate import Request

_DESCRIPTION = """\
Measure NLL, PPL and bits per byte of a base, or of an adapter on it, on a text.

Use it to check a base before a study, or an exported adapter afterwards. An exported adapter is
measured on the text that it was tested on, unless you give another one. With --against, two
adapters are measured on the same blocks, and their difference is paired block by block.

All intervals are 95 %. They cover the choice of blocks from such a text, as a study's verdict does
for a single run, but neither training seeds nor searches: for those, run a study.
"""
_EXAMPLES = """\
  hylorada evaluate --model gpt2 --data wikitext:wikitext-2-raw-v1 --block-size 512 --blocks 8
  hylorada evaluate --adapter winner/
  hylorada evaluate --adapter learnable-winner/ --against fixed-winner/
"""
_DEFAULT = "; default: %s, or that of the exported adapter"
_OVER = {
    "documents": "by document",
    "series": "blocks may be correlated along the text",
    "independent": "blocks taken as independent, because there are fewer than 20",
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--adapter",
        type=folder,
        metavar="DIR",
        help="saved or exported adapter, or the id of one on the Hugging Face hub; default: none, "
        "the base alone",
    )
    parser.add_argument(
        "--against",
        type=folder,
        metavar="DIR",
        help="second adapter of the same base, to be compared with the first; default: none",
    )
    parser.add_argument(
        "--landmark-design",
        action="append",
        metavar="FILE.py:CLASS",
        help="source file of the adapter's landmark design; it runs only if you name it here; may "
        "be repeated",
    )
    add_study_fields(parser, ["model"], _DEFAULT % "tiny")
    add_study_fields(parser, ["data"], _DEFAULT % "pydocs")
    add_study_fields(parser, ["text_column", "document_separator"])
    parser.add_argument(
        "--split",
        default="test",
        metavar="SPLIT",
        help="train, validation or test; default: %(default)s",
    )
    add_study_fields(parser, ["block_size"], _DEFAULT % "128")
    parser.add_argument(
        "--blocks",
        type=int,
        metavar="N",
        help="measure the first N blocks of the split" + _DEFAULT % "all",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float64"),
        help="dtype of the base" + _DEFAULT % "float32",
    )
    add_json(parser)


def _run(args: argparse.Namespace, _console: "Console") -> int:
    from studies.reporting.printed import print_json
    from studies.runner.evaluate import Request, measure

    request = Request.of(args.adapter, {name: getattr(args, name) for name in Request.options()})
    describe = None if args.json else partial(print, "hylorada:", file=sys.stderr, flush=True)
    values, notes = measure(request, describe)
    for note in notes:
        print(f"hylorada: {note}", file=sys.stderr)
    if args.json:
        print_json(_finite(values), allow_nan=False)
    else:
        _print_values(request, values)
    return 0


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with None for NaN, which a tenth of the positions without tokens gives.

    JSON has no NaN.
    """
    inner = {k: _finite(v) if isinstance(v, Mapping) else v for k, v in values.items()}
    return {k: None if _is_not_finite(v) else v for k, v in inner.items()}


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _print_values(request: "Request", values: Mapping[str, Any]) -> None:
    what = f"{request.model} with {request.adapter}" if request.adapter else request.model
    size = f"{values['blocks']} x {request.block_size} tokens"
    print(f"{what} on {request.data}, split {request.split}, {size}")
    print(f"{_measured(values)}  tokens {values['tokens']}")
    if values["nll_error"] is not None:
        print(
            f"standard error of NLL {values['nll_error']:.4f}  95 % interval of PPL "
            f"[{values['ppl_low']:.4f}, {values['ppl_high']:.4f}], "
            f"{_OVER[values['interval_over']]}"
        )
    if "against" in values:
        print(f"{request.against}: {_measured(values['against'])}")
        _print_difference(request, values["difference"])


def _measured(values: Mapping[str, Any]) -> str:
    return (
        f"NLL {values['nll']:.6f}  PPL {values['ppl']:.4f}  "
        f"bits per byte {values['bits_per_byte']:.4f}"
    )


def _print_difference(request: "Request", values: Mapping[str, Any]) -> None:
    """Print what changes from the second adapter to the first."""
    change = f"{values['ppl_percent']:+z.3f} % PPL"
    nll = f"NLL {values['nll']:+z.6f}"
    if "p" not in values:
        print(f"{request.adapter} against {request.against}: {change}, {nll}; one block")
        return
    ends = f"[{values['ppl_percent_low']:+z.3f}, {values['ppl_percent_high']:+z.3f}]"
    found = "no difference is shown" if values["p"] > 0.05 else _verdict(values["nll"])
    print(
        f"{request.adapter} against {request.against}: {change} {ends}, {nll} "
        f"(standard error {values['nll_error']:.6f}, p = {values['p']:.2g}): {found}"
    )


def _verdict(difference: float) -> str:
    return "better on this text" if difference < 0 else "worse on this text"


COMMAND = Command(
    name="evaluate",
    summary="measure NLL, PPL and bits per byte of a base, or of an adapter on it",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
)
