"""The command line."""

import argparse
import errno
import json
import math
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from filelock import Timeout
from rich.console import Console

from hylorada import InputError, nearest
from studies.cli.arguments import parse
from studies.cli.requested_study import checked_study, definitions, study_folder
from studies.files.folder_files import require_kinds, require_readable, stored_study, study_lock
from studies.process.environment import prepare_environment
from studies.process.errors import StudyStopped, is_storage_error, uncoloured
from studies.process.mlflow_address import heed_environment, shown
from studies.process.options import Options, default_uri
from studies.process.provenance import command_line
from studies.process.terminal_text import guarded_streams, reads_back, silence
from studies.reporting.printed import print_json, print_results, printing, tell_failures
from studies.reporting.terminal import Terminal, say


def main(arguments: Sequence[str] | None = None) -> int:
    """Read and run one command.

    Returns:
        The exit code.
    """
    with guarded_streams():
        return run(parse(arguments))


def run(args: argparse.Namespace) -> int:
    """Run a command that has been read.

    Returns:
        The exit code.
    """
    prepare_environment()
    console = Terminal(stderr=True)
    try:
        if args.command in ("run", "extend", "resolve", "explain", "status", "ui"):
            args.tracking_uri = heed_environment(args.tracking_uri)
        code: int = _COMMANDS[args.command](args, console)
        sys.stdout.flush()  # here, where what it raises can be told
    except InputError as error:
        for problem in dict.fromkeys(error.problems):
            print(f"hylorada: {problem}", file=sys.stderr)
        return 2
    except StudyStopped as error:
        print(f"hylorada: {error}", file=sys.stderr)
        return 3
    except BrokenPipeError:
        silence(sys.stdout)
        return 0
    except OSError as error:
        theirs = isinstance(error, PermissionError) or error.errno == errno.ENAMETOOLONG
        if not (theirs or is_storage_error(error)):
            raise
        if error.filename is not None:
            print(f"hylorada: {error.filename} can't be used: {error.strerror}", file=sys.stderr)
            return 2 if theirs else 3
        silence(sys.stdout)
        print(f"hylorada: the output can't be written: {error.strerror}", file=sys.stderr)
        return 3
    return code


def _run(args: argparse.Namespace, console: Console) -> int:
    options = _options(args)
    return _run_study(checked_study(args, options), options, args, console)


def _extend(args: argparse.Namespace, console: Console) -> int:
    from studies.spec.study import GROWING, Study

    stored = stored_study(_open(args) / "study.json")
    asked = {name: getattr(args, name) for name in GROWING if getattr(args, name) is not None}
    if not asked:
        *some, last = [f"--{name} (now {stored[name]})" for name in GROWING]
        counts = f"{', '.join(some)} or {last}"
        raise InputError(f"extend {args.study!r} by what? give {counts}")
    return _run_study(Study.from_dict({**stored, **asked}), _options(args), args, console)


def _resolve(args: argparse.Namespace, console: Console) -> int:
    from studies.runner.resolve import Budget, resolve
    from studies.runner.run import run_study
    from studies.spec.study import Study

    study = Study.from_dict(stored_study(_open(args) / "study.json"))
    budget = Budget(args.margin, args.time_limit)
    return _run_study(
        study,
        _options(args),
        args,
        console,
        lambda *a: resolve(a[0], a[1], a[2], budget, run_study),
    )


def _explain(args: argparse.Namespace, console: Console) -> int:
    from studies.cli.explain import asked, explanation_values, print_explanation
    from studies.runner.run import explain_study

    folder = _open(args)
    _require_results(folder, args.study)
    study, request = asked(folder, args)
    found = _carried(
        study, _options(args), lambda options: explain_study(study, options, console, request)
    )
    if isinstance(found, int):
        return found
    values = explanation_values(found)
    printing(
        lambda: print_json(values, indent=1) if args.json else print_explanation(found, folder)
    )
    return 3 if tell_failures(folder) else 0


def _options(args: argparse.Namespace) -> Options:
    return Options(
        storage=args.storage.absolute(),
        tracking_uri=args.tracking_uri,
        address=args.address,
        seats=args.seats,
        wait=args.wait,
        quiet=args.json,
    )


def _run_study(
    study: Any,
    options: Options,
    args: argparse.Namespace,
    console: Console,
    run: Callable[..., Any] | None = None,
) -> int:
    from studies.runner.run import run_study

    results = _carried(study, options, lambda options: (run or run_study)(study, options, console))
    if isinstance(results, int):
        return results
    folder = options.study_folder(study.name)

    def show() -> None:
        print_results(results, args.json)
        if not args.json:
            print(
                f"report: {folder / 'report.html'}   MLflow: hylorada ui --storage {shlex.quote(str(args.storage))}"
            )

    printing(show)
    crashed = tell_failures(folder)
    return 3 if crashed or not results.arms else 0


def _carried(study: Any, options: Options, run: Callable[[Options], Any]) -> Any:
    """Return what a study's run has found; where it breaks off, say how to go on, and return the exit code."""
    try:
        return run(options)
    except (KeyboardInterrupt, SystemExit):  # Ray may turn SIGTERM into the second
        saved = (
            "state saved"
            if os.path.isdir(options.study_folder(study.name))
            else "nothing to save yet"
        )
        print(f"interrupted; {saved}. To go on: {command_line()}", file=sys.stderr)
        return 130
    except InputError:
        raise
    except StudyStopped as error:
        print(
            f"hylorada: {error}\nthe study stopped; state saved. To go on: {command_line()}",
            file=sys.stderr,
        )
        return 3
    except Exception:
        print(uncoloured(traceback.format_exc()), end="", file=sys.stderr)
        print(
            f"hylorada: the study broke off; state saved. To go on: {command_line()}",
            file=sys.stderr,
        )
        return 3


def _list(args: argparse.Namespace, _console: Console) -> int:
    known = {name: module.DESCRIPTION for name, module in definitions().items()}
    require_readable(args.storage, args.storage / "studies")
    require_kinds(files=(), folders=(args.storage, args.storage / "studies"))
    run = sorted(p.parent.name for p in (args.storage / "studies").glob("*/study.json"))
    if args.json:
        print_json({"definitions": known, "studies": run})
        return 0
    print("definitions:")
    for name, description in known.items():
        print(f"  {name:24} {description}")
    print(f"studies in {args.storage}:" + ("" if run else " none"))
    for name in run:
        print(f"  {name}")
    return 0


def _show(args: argparse.Namespace, _console: Console) -> int:
    from studies.spec.plain_yaml import to_yaml

    values = checked_study(args).to_dict()
    if args.json:
        print_json(values, indent=1)
        return 0
    text = to_yaml(values)
    print(text if reads_back(text, sys.stdout.encoding) else to_yaml(values, escaped=True), end="")
    return 0


def _open(args: argparse.Namespace) -> Path:
    """The folder of a study that has been run."""
    from studies.trials.records import check_kinds

    folder = study_folder(args.storage, args.study)
    if folder is None:
        require_kinds(files=(), folders=(args.storage, args.storage / "studies"))
        there = [p.parent.name for p in (args.storage / "studies").glob("*/study.json")]
        hint = nearest(args.study, there) if there else f"there is none in {args.storage}"
        raise InputError(f"no study {args.study!r} has been run; {hint}")
    check_kinds(folder)
    return folder


def _open_finished(args: argparse.Namespace) -> Path:
    from studies.trials.records import OPEN

    folder = _open(args)
    _require_results(folder, args.study)
    if (folder / OPEN).exists():
        going_on = "goes on, or was broken off since; this is what it had found before"
        print(f"hylorada: note: study {args.study!r} {going_on}", file=sys.stderr)
    return folder


def _require_results(folder: Path, name: str) -> None:
    if not (folder / "results.json").exists():
        raise InputError(
            f"study {name!r} has not finished; see `hylorada status {name}`, or run it to its end"
        )


def _report(args: argparse.Namespace, _console: Console) -> int:
    from studies.analysis.results import read_results

    folder = _open_finished(args)
    print_results(read_results(folder / "results.json"), args.json)
    if not args.json:
        print(f"report: {folder / 'report.html'}")
    return 0


def _status(args: argparse.Namespace, _console: Console) -> int:
    from studies.analysis.progress import going_on, stage_lines
    from studies.analysis.results import load_records
    from studies.reporting.html_report import trial_table
    from studies.spec.study import Study
    from studies.trials.integrity import incomplete_runs
    from studies.trials.records import OPEN, database_fault

    folder = _open(args)
    study = Study.from_dict(stored_study(folder / "study.json"))
    unfinished = (folder / OPEN).exists() or not (folder / "results.json").exists()
    busy = unfinished and _at_work(
        folder
    )  # looked at first: a process that is at work changes what is read next
    records = load_records(folder)
    if fault := database_fault(folder, records):
        print(f"hylorada: note: {fault}", file=sys.stderr)
    for name, loss in () if busy else incomplete_runs(folder, study, records):
        print(
            f"hylorada: note: {loss}; `hylorada run {shlex.quote(args.study)}` trains {name} again",
            file=sys.stderr,
        )
    if unfinished:
        _close_abandoned(args, folder)
    if args.json:
        fields = ("name", "arm", "stage", "state", "reason", "step", "nll", "restarts", "params")
        print_json([{f: getattr(r, f) for f in fields} for r in records.values()], indent=1)
        return 0
    Terminal().print(trial_table(records, study))
    for line in stage_lines(study, records):
        print(line)
    if unfinished and not busy:
        command = going_on(args.study, records)
        where = _option("--storage", args.storage, Path("mlruns")) + _option(
            "--tracking-uri", args.tracking_uri, None
        )
        print(f"Not running. Resume with: {shlex.join([*command, *where])}")
    if lost := [r.restarts for r in records.values() if r.restarts]:
        print(f"restarts: {sum(lost)}, of {len(lost)} trials whose process or machine was lost")
    return 0


def _option(name: str, value: object, default: object) -> list[str]:
    return [] if value == default else [name, shown(str(value))]


def _at_work(folder: Path) -> bool:
    """Whether a process runs this study: it then holds the lock."""
    try:
        with study_lock(folder):
            return False
    except (Timeout, OSError):  # in a folder that can't be written to, nobody knows
        return True


def _close_abandoned(args: argparse.Namespace, folder: Path) -> None:
    """A process that was killed could not end its MLflow runs."""
    from studies.tracking.services import reconcile

    if told := reconcile(args.tracking_uri or default_uri(args.storage), args.study, folder):
        print(f"hylorada: {told}", file=sys.stderr)


def _evaluate(args: argparse.Namespace, _console: Console) -> int:
    from studies.runner.evaluate import Request, measure

    request = Request.of(args.adapter, {name: getattr(args, name) for name in Request.options()})
    values, notes = measure(
        request, None if args.json else partial(print, "hylorada:", file=sys.stderr, flush=True)
    )
    for note in notes:
        print(f"hylorada: {note}", file=sys.stderr)
    if args.json:
        finite = {
            k: v if not isinstance(v, float) or math.isfinite(v) else None
            for k, v in values.items()
        }
        print_json(finite, allow_nan=False)  # JSON has no NaN, which a tenth without tokens gives
    else:
        what = f"{request.model} with {request.adapter}" if request.adapter else request.model
        print(
            f"{what} on {request.data}, split {request.split}, {values['blocks']} x {request.block_size} tokens"
        )
        print(
            f"NLL {values['nll']:.6f}  PPL {values['ppl']:.4f}  bits per byte {values['bits_per_byte']:.4f}  "
            f"tokens {values['tokens']}"
        )
    return 0


def _export(args: argparse.Namespace, _console: Console) -> int:
    from studies.reporting.export import export_winner

    found = export_winner(_open_finished(args), args.output, arm=args.arm, seed=args.seed)
    if args.json:
        print_json({**found, "output": str(args.output)}, indent=1)
    else:
        print(
            f"{args.output}: {found['run']} of study {found['study']!r}, test PPL {found['test_ppl']:.4f}"
        )
    return 0


def _bench(args: argparse.Namespace, console: Console) -> int:
    import dataclasses

    from studies.bench.options import BenchOptions, check
    from studies.bench.run import run_bench
    from studies.bench.table import print_bench

    values = {**vars(args), "parts": args.rows, "ray": not args.no_processes}
    plan = check(BenchOptions(**{f.name: values[f.name] for f in dataclasses.fields(BenchOptions)}))
    if args.json not in (None, "-") and not Path(args.json).absolute().parent.is_dir():
        raise InputError(f"json {args.json!r}: its folder does not exist")
    bench = run_bench(plan, lambda line: say(console, line))
    if args.json == "-":
        print_json(bench.to_dict())
        return 0
    if args.json is not None:
        Path(args.json).write_text(json.dumps(bench.to_dict(), indent=1))
    print_bench(bench, Terminal())
    return 0


def _ui(args: argparse.Namespace, _console: Console) -> int:
    from studies.tracking.page import serve_page

    return serve_page(args)


_COMMANDS = {
    "run": _run,
    "extend": _extend,
    "resolve": _resolve,
    "explain": _explain,
    "list": _list,
    "show": _show,
    "report": _report,
    "status": _status,
    "evaluate": _evaluate,
    "export": _export,
    "bench": _bench,
    "ui": _ui,
}
