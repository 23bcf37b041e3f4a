"""The arguments of the command line, and the help that teaches them."""

import argparse
import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hylorada import nearest

_EPILOG = """\
examples:
  hylorada run learnable_bucketing                              built-in base and text, no network
  hylorada run learnable_bucketing --model gpt2 --data wikitext:wikitext-2-raw-v1 --block-size 512 --name wt2 \\
      --set defaults.max_steps=500 --trials 16 --seeds 5        your own base and text
  hylorada show learnable_bucketing                             the whole study as YAML, to edit and run with --config
  hylorada report learnable_bucketing --json                    what it found

Options are written out: --trials, not --tri. Running the same command again resumes; nothing finished is run twice.
exit codes: 0 done, 2 bad input, 3 a trial crashed or no arm finished, 130 interrupted with state saved
"""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read a command line; ``command`` names the subcommand. Help and what argparse refuses end the process."""
    parser, commands = _make_parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        parser.print_help()
        parser.exit(2)
    _refuse_unknown(words, parser, commands)
    args = parser.parse_args(words)
    for name, value in vars(args).items():
        if (value == [] and name != "set") or (isinstance(value, list) and [] in value):
            parser.error(
                f"argument --{name.replace('_', '-')}: '--' is no value"
            )  # argparse makes [] of --name=--
    return args


def _refuse_unknown(
    words: Sequence[str],
    parser: argparse.ArgumentParser,
    commands: Mapping[str, argparse.ArgumentParser],
) -> None:
    """Refuse an unknown command or option with the nearest name, before argparse names what is missing beside it.

    An abbreviated option is unknown too: another version may have a second option that begins so.
    """
    place = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    if unknown := _unknown_option(words[:place], parser):
        misplaced = any(unknown in _options(command) for command in commands.values())
        hint = "write it after the command" if misplaced else nearest(unknown, _options(parser))
        parser.error(f"unrecognized arguments: {unknown}; {hint}")
    if place == len(words):
        return
    if (name := words[place]) not in commands:
        parser.error(f"unknown command {name!r}; {nearest(name, commands)}")
    command = commands[name]
    if unknown := _unknown_option(words[place + 1 :], command):
        command.error(f"unrecognized arguments: {unknown}; {nearest(unknown, _options(command))}")


def _unknown_option(words: Sequence[str], parser: argparse.ArgumentParser) -> str | None:
    """Return the first word that argparse would take for an option and the parser has none of."""
    options = itertools.takewhile(lambda word: word != "--", words)
    names = [
        word.partition("=")[0] for word in options if word.startswith("-") and not _is_value(word)
    ]
    return next((name for name in names if name not in _options(parser)), None)


def _is_value(word: str) -> bool:
    """Return whether argparse takes a word with a dash in front for a value."""
    return (
        word == "-"
        or " " in word.partition("=")[0]
        or re.fullmatch(r"-\d+|-\d*\.\d+", word) is not None
    )


def _options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def _make_parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser and, by name, those of its commands."""
    parser = argparse.ArgumentParser(
        prog="hylorada",
        description="Does learning where position buckets lie make HyLoRADA adapters better, on your model and text?",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hylorada {version('hylorada')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    _add_run(commands)
    _add_extend(commands)
    _add_resolve(commands)
    _add_explain(commands)
    _add_simple(
        commands,
        "list",
        "study definitions, and the studies in the storage folder",
        json_output=True,
    )
    show = _add_simple(
        commands,
        "show",
        "a study's settings as YAML, to edit and run with --config",
        json_output=True,
    )
    _add_study_options(show)
    _add_named(commands, "report", "the table and the verdict of a study")
    _add_named(commands, "status", "how far a study has come")
    _add_evaluate(commands)
    _add_export(commands)
    _add_bench(commands)
    ui = _add_simple(commands, "ui", "serve the MLflow page on this machine")
    ui.add_argument("--port", type=int, default=5000, help="default: %(default)s")
    ui.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; default: %(default)s (this machine only)",
    )
    return parser, commands.choices


def _add_simple(commands: Any, name: str, text: str, *, json_output: bool = False) -> Any:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    _add_storage(parser)
    if json_output:
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add_named(commands: Any, name: str, text: str) -> None:
    parser = _add_simple(commands, name, text, json_output=True)
    parser.add_argument("study", help="name of a study that has been run")


def _folder(text: str) -> Path:
    if not text:  # would be the current one
        raise argparse.ArgumentTypeError("must name a folder, got ''")
    return _path(text)


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text))  # the shell leaves --storage=~/runs alone


def _add_storage(parser: Any) -> None:
    parser.add_argument(
        "--storage", type=_folder, default=Path("mlruns"), help="folder; default: %(default)s"
    )
    parser.add_argument(
        "--tracking-uri",
        help="MLflow: a database or server; default: MLFLOW_TRACKING_URI, else sqlite in the storage folder",
    )


def _add_study_options(parser: Any) -> None:
    parser.add_argument(
        "study",
        nargs="?",
        help="definition (see `hylorada list`) or the name of one that has been run",
    )
    parser.add_argument(
        "--config", type=_path, metavar="FILE", help="YAML file with the fields to change"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        help="change one field; may be repeated",
    )
    parser.add_argument(
        "--name", help="of this study: folder and MLflow experiment; default: the definition's"
    )
    parser.add_argument("--model", help="base: tiny, smollm2-135m, a hub id or a folder")
    parser.add_argument(
        "--data",
        help="text: pydocs, a hub name:config, a folder or a file (.txt .jsonl .parquet .csv .tsv)",
    )
    parser.add_argument(
        "--text-column", help="column of a table; default: text, content, or chats (messages)"
    )
    _add_separator(parser)
    parser.add_argument("--block-size", type=int, metavar="T", help="tokens in a block")
    parser.add_argument(
        "--trials", type=int, metavar="N", help="search trials for each arm, in each search"
    )
    parser.add_argument(
        "--searches",
        type=int,
        metavar="R",
        help="independent searches; with 2 or more, the verdict is about the method",
    )
    parser.add_argument(
        "--seeds", type=int, metavar="S", help="paired seeds of the confirm stage, in each search"
    )
    parser.add_argument("--seed", type=int, help="of the whole study")


def _add_separator(parser: Any) -> None:
    parser.add_argument(
        "--document-separator",
        metavar="S",
        help="between rows or files: eos (the end token: they are documents), newline (they are lines of one text), "
        "none, or auto; default: auto, by what the rows look like",
    )


def _add_run(commands: Any) -> None:
    text = "search, confirm and report; the same command again resumes"
    parser = _add_simple(commands, "run", text, json_output=True)
    _add_study_options(parser)
    _add_place(parser)


def _add_extend(commands: Any) -> None:
    text = (
        "enlarge a study that has been run: more searches, more trials in each, more paired seeds"
    )
    parser = _add_simple(commands, "extend", text, json_output=True)
    parser.add_argument("study", help="name of a study that has been run")
    parser.add_argument(
        "--trials", type=int, metavar="N", help="search trials for each arm and search, in all"
    )
    parser.add_argument("--searches", type=int, metavar="R", help="independent searches, in all")
    parser.add_argument(
        "--seeds", type=int, metavar="S", help="paired seeds of the confirm stage, in all"
    )
    _add_place(parser)


def _add_resolve(commands: Any) -> None:
    text = "add searches to a study that has been run until every comparison is decided, or the time is up"
    parser = _add_simple(commands, "resolve", text, json_output=True)
    parser.add_argument("study", help="name of a study that has been run")
    parser.add_argument(
        "--margin",
        type=float,
        default=0.1,
        metavar="PERCENT",
        help="largest change that does not matter; default: %(default)s",
    )
    parser.add_argument(
        "--time-limit", type=_seconds, metavar="TIME", help="such as 90s, 30m or 2h; default: none"
    )
    _add_place(parser)


_EXPLAIN = """\
Measure which parameters make a winner of a finished study what it is, and which do not matter.

  path        from the study's defaults to the winner, one parameter of the arm's own at a time, in the order of
              `hylorada show`; each step on top of those before it. A parameter with a condition (when) comes with it.
  neighbours  the winner with one parameter one step away: the next smaller and larger number of a choice, each other
              value of a choice without an order, a third of a range (on its own scale, or to its end) up and down.

All configurations are trained in full on the same fresh seeds, at the winner's common values (such as the learning
rate). The intervals are of paired differences in validation PPL, on validation blocks that the search has not seen
where there are at least 20 of these. The test split is not read, and the study's verdict stays as it is.
Prints two tables, and writes explain.json and a section of report.html. The same command again resumes.
"""
_EXPLAIN_EXAMPLES = """\
examples:
  hylorada explain learnable_bucketing                          the winner of the first comparison's arm
  hylorada explain learnable_bucketing --arm fixed --seeds 6    another arm, narrower intervals
  hylorada explain learnable_bucketing --search 2               the winner of another of its searches
"""


def _add_explain(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="measure which parameters make a winner better than the defaults, and than its neighbours",
        description=_EXPLAIN,
        epilog=_EXPLAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", help="name of a study that has finished")
    parser.add_argument(
        "--arm", help="whose winner; default: the arm of the study's first comparison"
    )
    parser.add_argument(
        "--search",
        type=int,
        default=0,
        metavar="N",
        help="which search's winner, from 0: each search has its own; default: %(default)s",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="S",
        help="fresh paired seeds; default: the study's seeds, at least 3",
    )
    _add_storage(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    _add_place(parser)


def _seconds(text: str) -> float:
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], text[-1:]) if text[-1:] in units else (text, "s")
    try:
        return float(number) * units[unit]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a time such as 90s, 30m or 2h, got {text!r}"
        ) from None


def _add_place(parser: Any) -> None:
    parser.add_argument(
        "--address", help="Ray cluster to join, auto or HOST:6379; default: this machine"
    )
    parser.add_argument(
        "--seats",
        type=int,
        metavar="K",
        help="trials in a pack; default: 4 on CPUs, measured on GPUs",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=5,
        metavar="SECONDS",
        help="for the first node of a cluster that trials can run on; default: %(default)s",
    )


def _add_evaluate(commands: Any) -> None:
    text = "NLL, PPL and bits per byte of a base, or of an adapter on it, on a text"
    parser = commands.add_parser("evaluate", help=text, description=text + ".")
    exported = "default: %s, or what an exported adapter was tested on"
    parser.add_argument(
        "--adapter", type=_folder, metavar="DIR", help="a saved or exported adapter; default: none"
    )
    parser.add_argument("--model", help=exported % "tiny")
    parser.add_argument("--data", help=exported % "pydocs")
    parser.add_argument(
        "--text-column", help="column of a table; default: text, content, or chats (messages)"
    )
    _add_separator(parser)
    parser.add_argument(
        "--split", default="test", help="train, validation or test; default: %(default)s"
    )
    parser.add_argument("--block-size", type=int, metavar="T", help=exported % "128")
    parser.add_argument(
        "--blocks", type=int, metavar="N", help="first N blocks; " + exported % "all"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float64"),
        help="of the base; " + exported % "float32",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_export(commands: Any) -> None:
    text = "write the winner of a finished study: an adapter that stock PEFT loads too, and its model card"
    parser = _add_simple(commands, "export", text, json_output=True)
    parser.add_argument("study", help="name of a study that has been run")
    parser.add_argument(
        "--arm", help="whose winner; default: the arm of lowest mean validation loss over its seeds"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="which paired seed's run; default: the first"
    )
    parser.add_argument(
        "--output", type=_folder, required=True, metavar="DIR", help="folder to write"
    )


def _add_bench(commands: Any) -> None:
    text = "speed and memory of packs against plain loops and processes, on this machine"
    parser = commands.add_parser("bench", help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--model", help="base; default: tiny")
    parser.add_argument(
        "--shape", help="random weights in the shape of gpt2 or smollm2 instead of a model"
    )
    parser.add_argument("--data", help="text; default: pydocs, random tokens with --shape")
    parser.add_argument(
        "--block-size", type=int, metavar="T", help="tokens in a block; default: 128, 512 on a GPU"
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="blocks a step; default: 2, 4 on a GPU"
    )
    parser.add_argument("--r", type=int, default=8, help="LoRA rank; default: %(default)s")
    parser.add_argument("--dtype", help="of the base; default: float32, bfloat16 on a GPU")
    parser.add_argument(
        "--packs", metavar="K,K", help="sizes of packs; default: 1,2,4,... up to --max-pack"
    )
    parser.add_argument(
        "--max-pack", type=int, metavar="K", help="default: 8, 64 on a GPU, as memory allows"
    )
    parser.add_argument(
        "--steps", type=int, default=20, help="of each trial in a measurement; default: %(default)s"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="of each measurement; default: %(default)s"
    )
    parser.add_argument(
        "--rows", metavar="A,B", help="of plain,processes,packs,designs,memory,report; default: all"
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="that share the device; default: cores, 8 on a GPU",
    )
    parser.add_argument(
        "--no-processes", action="store_true", help="leave out what needs Ray: processes and report"
    )
    parser.add_argument(
        "--search", action="store_true", help="time whole searches too, process starts included"
    )
    parser.add_argument(
        "--trials", type=int, default=24, metavar="N", help="of --search; default: %(default)s"
    )
    parser.add_argument(
        "--search-steps", type=int, default=48, help="of its trials; default: %(default)s"
    )
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="write the profile of one step of the last pack",
    )
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="print JSON, or write it to a file"
    )
