"""Options that several commands share."""

import argparse
import os
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from studies.process.options import PROGRESS, Options
from studies.spec.fields import field_infos, field_types
from studies.spec.study import GROWING, Study

_TIME = re.compile(r"(?:(\d+(?:\.\d*)?)h)?(?:(\d+(?:\.\d*)?)m)?(?:(\d+(?:\.\d*)?)s?)?")


def seconds(text: str) -> float:
    """Return an option's value, such as 90s, 30m, 2h or 1h30m, in seconds.

    Raises:
        argparse.ArgumentTypeError: The value is not a time.
    """
    parts = _TIME.fullmatch(text)
    if not text or parts is None:
        raise argparse.ArgumentTypeError(
            f"must be a time such as 90s, 30m, 2h or 1h30m, got {text!r}"
        )
    hours, minutes, rest = (float(part or 0) for part in parts.groups())
    return 3600 * hours + 60 * minutes + rest


def folder(text: str) -> Path:
    """Return an option's value as a path, with ``~`` expanded.

    Raises:
        argparse.ArgumentTypeError: The value is empty, which would mean the current folder.
    """
    if not text:
        raise argparse.ArgumentTypeError("must name a folder, got ''")
    return path(text)


def path(text: str) -> Path:
    """Return an option's value as a path, with ``~`` expanded: shells leave ``--storage=~/x``."""
    return Path(os.path.expanduser(text))


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where studies and MLflow's runs are."""
    parser.add_argument(
        "--storage",
        type=folder,
        default=Path("mlruns"),
        metavar="DIR",
        help="folder of the studies and of MLflow's database; default: %(default)s",
    )
    parser.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="MLflow database or server, or wandb:PROJECT for Weights & Biases; default: "
        "MLFLOW_TRACKING_URI if set, otherwise SQLite in "
        "the storage folder",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def add_study_name(parser: argparse.ArgumentParser) -> None:
    """Add the name of a study that has been run, as an argument."""
    parser.add_argument("study", metavar="STUDY", help="name of a study that has been run")


def whole_numbers(text: str) -> list[int]:
    """Return an option's value, such as 42,123,456, as numbers.

    Raises:
        argparse.ArgumentTypeError: The value is not a list of whole numbers.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers such as 42,123,456, got {text!r}"
        ) from None


def study_options() -> list[str]:
    """Return the fields of a study that have a command-line option."""
    return [name for name, info in field_infos(Study).items() if info.option]


def add_study_fields(
    parser: argparse.ArgumentParser, names: Iterable[str], suffix: str = ""
) -> None:
    """Add an option for each of these fields of a study, as the fields are declared.

    Args:
        parser: of the command.
        names: fields that have an option.
        suffix: ends the help text of each.
    """
    infos, types = field_infos(Study), field_types(Study)
    for name in names:
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=_converter(types.get(name, ())),
            metavar=infos[name].option,
            help=infos[name].text.replace("%", "%%") + suffix,
        )


def _converter(types: Collection[Any]) -> Callable[[str], Any]:
    """Return what reads an option's value; a field without plain types holds whole numbers."""
    if int in types:
        return int
    return str if str in types else whole_numbers


def add_study(parser: argparse.ArgumentParser) -> None:
    """Add the study to run or show, and the options that change it."""
    parser.add_argument(
        "study",
        nargs="?",
        metavar="STUDY",
        help="study definition (see `hylorada list`), or the name of a study that has been run",
    )
    parser.add_argument(
        "--config", type=path, metavar="FILE", help="YAML file with the fields to change"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        help="change one field, such as defaults.max_steps=500; may be repeated",
    )
    parser.add_argument(
        "--budget",
        metavar="NAME",
        help="published training budget: quick (the first 500 training blocks, 1 epoch), full "
        "(1000, 3 epochs) or extended (2000, 5 epochs); sets train_blocks and epochs",
    )
    parser.add_argument(
        "--start-from",
        action="append",
        metavar="STUDY",
        help="begin each search with the winners of this earlier study (name or folder); may be "
        "repeated",
    )
    add_study_fields(parser, study_options())


def add_larger_counts(parser: argparse.ArgumentParser) -> None:
    """Add an option for each count by which a study can be extended."""
    add_study_fields(parser, GROWING, "; the new total, not the increase")


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where and how trials train."""
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="Ray cluster to join, as auto or HOST:6379; default: train on this machine",
    )
    parser.add_argument(
        "--pack-size",
        type=int,
        metavar="K",
        help="trials that train together in a pack; default: 4 on CPUs, measured on GPUs",
    )
    # The name of this option in earlier versions.
    parser.add_argument("--seats", dest="pack_size", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--wait",
        type=float,
        default=5,
        metavar="SECONDS",
        help="how long to wait for a cluster's first node that can run trials; default: "
        "%(default)s",
    )
    parser.add_argument(
        "--progress",
        choices=PROGRESS,
        default="auto",
        help="live: a panel in a terminal; plain: a line a minute; none; auto: live in a terminal, "
        "plain elsewhere, none with --json; default: %(default)s",
    )


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that end a run early."""
    parser.add_argument(
        "--time-limit",
        type=seconds,
        metavar="TIME",
        help="end within this time, such as 60s, 90m or 1h30m, with a verdict from the searches "
        "that fit; the same command without it runs the others; default: no limit",
    )
    parser.add_argument(
        "--max-failures",
        type=int,
        metavar="N",
        help="stop the study once more than N of its trials have failed; default: failed trials "
        "are left out, however many there are",
    )


def run_options(args: argparse.Namespace) -> Options:
    """Return where a study runs, what it writes to and what ends it early."""
    return Options(
        storage=args.storage.absolute(),
        tracking_uri=args.tracking_uri,
        address=args.address,
        seats=args.pack_size,
        wait=args.wait,
        quiet=args.json,
        progress="none" if args.json and args.progress == "auto" else args.progress,
        time_limit=getattr(args, "time_limit", None),
        max_failures=getattr(args, "max_failures", None),
    )
