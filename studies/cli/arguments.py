"""The parser of the command line: its commands, its help and its checks of names."""

import argparse
import itertools
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version

from hylorada import nearest
from studies.cli.command import Command
from studies.cli.subcommands import (
    bench,
    compare,
    estimate,
    evaluate,
    explain,
    export,
    extend,
    report,
    resolve,
    run,
    status,
    ui,
)
from studies.cli.subcommands import list as list_
from studies.cli.subcommands.running import add, stop, watch
from studies.cli.subcommands.study_files import schema, show

COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        *(run.COMMAND, estimate.COMMAND, extend.COMMAND, resolve.COMMAND, explain.COMMAND),
        *(watch.COMMAND, stop.COMMAND, add.COMMAND),
        *(list_.COMMAND, show.COMMAND, schema.COMMAND),
        *(status.COMMAND, report.COMMAND, compare.COMMAND),
        *(evaluate.COMMAND, export.COMMAND, bench.COMMAND, ui.COMMAND),
    )
}

_DESCRIPTION = """\
Do learned bucket boundaries beat fixed ones, on your model and your text?

`hylorada run` searches both, trains the best configurations again on fresh seeds, and reports the
difference on held-out text with a 95 % interval.
"""
_EPILOG = """\
examples:
  hylorada run learnable_bucketing
      with the built-in base and text; needs no network and takes a few minutes
  hylorada run learnable_bucketing --model gpt2 --data wikitext:wikitext-2-raw-v1 \\
      --block-size 512 --name wt2 --set defaults.max_steps=500 --trials 16 --seeds 5
      with your own base and text
  hylorada show learnable_bucketing > study.yaml
      all settings as YAML, to edit and run with --config study.yaml
  hylorada report learnable_bucketing --json
      the results, for a program

eval "$(register-python-argcomplete hylorada)" in bash or zsh completes commands and names with Tab.

`hylorada COMMAND --help` explains a command. Options must be written in full: --trials, not --tri.
Running the same command again resumes; nothing that has finished is run twice.

exit codes:
  0    done
  2    bad input, with one line for each problem
  3    a trial crashed, no arm finished, or the study stopped; its state is saved
  130  interrupted; its state is saved, and the command that resumes it is printed
"""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read a command line.

    Args:
        arguments: words after the program's name; None takes those of this process.

    Returns:
        The values of the options; ``command`` is the name of the command.

    Raises:
        SystemExit: Help was printed, or the command line is wrong.
    """
    parser, commands = _make_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may follow
        from studies.cli.completion import complete

        complete(parser, commands)
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        parser.print_help()
        parser.exit(2)
    _refuse_unknown(words, parser, commands)
    args = parser.parse_args(words)
    for name, value in vars(args).items():
        # argparse parses --name=-- as []
        if (value == [] and name != "set") or (isinstance(value, list) and [] in value):
            parser.error(f"argument --{name.replace('_', '-')}: '--' is not a value")
    return args


def _refuse_unknown(
    words: Sequence[str],
    parser: argparse.ArgumentParser,
    commands: Mapping[str, argparse.ArgumentParser],
) -> None:
    """Refuse an unknown command or option with the nearest name.

    This comes before argparse, which would report what is missing instead. An abbreviated option is
    unknown too, because a later version may have a second option that begins the same way.
    """
    place = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    if unknown := _unknown_option(words[:place], parser):
        misplaced = any(unknown in _options(command) for command in commands.values())
        hint = "write it after the command" if misplaced else nearest(unknown, _shown(parser))
        parser.error(f"unrecognized arguments: {unknown}; {hint}")
    if place == len(words):
        return
    if (name := words[place]) not in commands:
        parser.error(f"unknown command {name!r}; {nearest(name, commands)}")
    command = commands[name]
    if unknown := _unknown_option(words[place + 1 :], command):
        command.error(f"unrecognized arguments: {unknown}; {nearest(unknown, _shown(command))}")


def _unknown_option(words: Iterable[str], parser: argparse.ArgumentParser) -> str | None:
    """Return the first word that argparse would read as an option the parser doesn't have."""
    known = _options(parser)
    for word in itertools.takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        if word.startswith("-") and not _is_value(word) and name not in known:
            return name
    return None


def _is_value(word: str) -> bool:
    """Return whether argparse reads a word that starts with a dash as a value."""
    return (
        word == "-"
        or " " in word.partition("=")[0]
        or re.fullmatch(r"-\d+|-\d*\.\d+", word) is not None
    )


def _options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def _shown(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options that help shows."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return {option for action in shown for option in action.option_strings}


def _make_parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser, and the parsers of its commands by name."""
    parser = argparse.ArgumentParser(
        prog="hylorada",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hylorada {version('hylorada')}")
    places = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, command in COMMANDS.items():
        command_parser = places.add_parser(
            name,
            help=command.summary,
            description=command.description,
            epilog=f"examples:\n{command.examples}" if command.examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(command_parser)
    return parser, places.choices
