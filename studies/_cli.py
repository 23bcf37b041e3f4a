"""The command line."""

import argparse
import json
import math
import os
import shlex
import signal
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from filelock import Timeout
from rich.console import Console

from hylorada import InputError, nearest

from ._arguments import parse
from ._asked import checked_study, definitions, study_folder
from ._environment import prepare_environment
from ._faults import StudyStopped, is_storage_error
from ._files import stored_study, study_lock
from ._job import ERROR_LOG
from ._options import Options, default_uri


def main(arguments: Sequence[str] | None = None) -> int:
    """Read and run one command.

    Returns:
        The exit code.
    """
    return run(parse(arguments))


def run(args: argparse.Namespace) -> int:
    """Run a command that has been read.

    Returns:
        The exit code.
    """
    _replace_closed_streams()
    prepare_environment()
    console = _Console(stderr=True, width=None if sys.stderr.isatty() else 120)
    try:
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
        _silence(sys.stdout)
        return 0
    except OSError as error:
        if not is_storage_error(error) or error.filename is not None:
            raise
        _silence(sys.stdout)
        print(f"hylorada: the output can't be written: {error.strerror}", file=sys.stderr)
        return 3
    return code


def _replace_closed_streams() -> None:
    """Read and write nothing where the shell has closed a stream (``>&-``); the lowest free number is that stream's."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends


def _silence(stream: TextIO) -> None:
    """Let go of what is still to be written to a stream that takes no more: Python would try again at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Console(Console):
    """Raises for results that nobody reads on, where rich exits with 1; a study goes on without its progress."""

    def on_broken_pipe(self) -> None:
        if not self.stderr:
            raise BrokenPipeError
        _silence(sys.stderr)


def _run(args: argparse.Namespace, console: Console) -> int:
    options = _options(args)
    return _run_study(checked_study(args, options), options, args, console)


def _extend(args: argparse.Namespace, console: Console) -> int:
    from ._study import GROWING, Study

    stored = stored_study(_open(args) / "study.json")
    asked = {name: getattr(args, name) for name in GROWING if getattr(args, name) is not None}
    if not asked:
        *some, last = [f"--{name} (now {stored[name]})" for name in GROWING]
        counts = f"{', '.join(some)} or {last}"
        raise InputError(f"extend {args.study!r} by what? give {counts}")
    return _run_study(Study.from_dict({**stored, **asked}), _options(args), args, console)


def _resolve(args: argparse.Namespace, console: Console) -> int:
    from ._resolve import Budget, resolve
    from ._run import run_study
    from ._study import Study

    study = Study.from_dict(stored_study(_open(args) / "study.json"))
    budget = Budget(args.margin, args.time_limit)
    return _run_study(study, _options(args), args, console, lambda *a: resolve(a[0], a[1], a[2], budget, run_study))


def _options(args: argparse.Namespace) -> Options:
    return Options(
        storage=args.storage.absolute(),
        tracking_uri=args.tracking_uri,
        address=args.address,
        seats=args.seats,
        wait=args.wait,
    )


def _run_study(
    study: Any, options: Options, args: argparse.Namespace, console: Console, run: Callable[..., Any] | None = None
) -> int:
    from ._run import run_study

    try:
        results = (run or run_study)(study, options, console)
    except (KeyboardInterrupt, SystemExit):  # Ray may turn SIGTERM into the second
        saved = "state saved" if os.path.isdir(options.study_folder(study.name)) else "nothing to save yet"
        print(f"interrupted; {saved}. To go on: {_resume_command()}", file=sys.stderr)
        return 130
    except InputError:
        raise
    except StudyStopped as error:
        print(f"hylorada: {error}\nthe study stopped; state saved. To go on: {_resume_command()}", file=sys.stderr)
        return 3
    except Exception:
        traceback.print_exc()
        print(f"hylorada: the study broke off; state saved. To go on: {_resume_command()}", file=sys.stderr)
        return 3
    folder = options.study_folder(study.name)
    try:
        _print_results(results, args.json)
        if not args.json:
            print(f"report: {folder / 'report.html'}   MLflow: hylorada ui --storage {shlex.quote(str(args.storage))}")
        sys.stdout.flush()
    except BrokenPipeError:  # what has failed is told all the same
        _silence(sys.stdout)
    crashed = _tell_failures(folder)
    return 3 if crashed or not results.arms else 0


def _tell_failures(folder: Path) -> bool:
    """Each distinct error once, with its count and a log; whether there is any."""
    from ._results import failures, load_records

    records = load_records(folder)
    found = failures(records)
    if found:
        states = Counter(r.state for r in records.values())
        print("hylorada: " + ", ".join(f"{n} {state}" for state, n in sorted(states.items())), file=sys.stderr)
    for reason, names in found.items():
        log = folder / "trials" / names[0] / ERROR_LOG
        print(f"hylorada: {len(names)} failed: {reason} (first {names[0]}, log: {log})", file=sys.stderr)
    return bool(found)


def _resume_command() -> str:
    return shlex.join(["hylorada", *sys.argv[1:]])


def _stdout() -> Console:
    """For results; off a terminal as wide as a table needs."""
    return _Console(width=None if sys.stdout.isatty() else 120)


def _print_results(results: Any, as_json: bool) -> None:
    from ._report import table, verdict_lines

    if as_json:
        print(json.dumps(results.to_dict(), indent=1))
        return
    out = _stdout()
    out.print(table(results))
    for line in verdict_lines(results):
        out.print(line, highlight=False, markup=False, soft_wrap=True)
    for note in results.notes:
        out.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


def _list(args: argparse.Namespace, _console: Console) -> int:
    known = {name: module.DESCRIPTION for name, module in definitions().items()}
    run = sorted(p.parent.name for p in (args.storage / "studies").glob("*/study.json"))
    if args.json:
        print(json.dumps({"definitions": known, "studies": run}))
        return 0
    print("definitions:")
    for name, description in known.items():
        print(f"  {name:24} {description}")
    print(f"studies in {args.storage}:" + ("" if run else " none"))
    for name in run:
        print(f"  {name}")
    return 0


def _show(args: argparse.Namespace, _console: Console) -> int:
    from ._yaml import to_yaml

    values = checked_study(args).to_dict()
    print(json.dumps(values, indent=1) if args.json else to_yaml(values), end="")
    return 0


def _open(args: argparse.Namespace) -> Path:
    """The folder of a study that has been run."""
    from ._records import check_kinds

    folder = study_folder(args.storage, args.study)
    if folder is None:
        there = [p.parent.name for p in (args.storage / "studies").glob("*/study.json")]
        hint = nearest(args.study, there) if there else f"there is none in {args.storage}"
        raise InputError(f"no study {args.study!r} has been run; {hint}")
    check_kinds(folder)
    return folder


def _open_finished(args: argparse.Namespace) -> Path:
    from ._records import OPEN

    folder = _open(args)
    if not (folder / "results.json").exists():
        raise InputError(
            f"study {args.study!r} has not finished; see `hylorada status {args.study}`, or run it to its end"
        )
    if (folder / OPEN).exists():
        going_on = "goes on, or was broken off since; this is what it had found before"
        print(f"hylorada: note: study {args.study!r} {going_on}", file=sys.stderr)
    return folder


def _report(args: argparse.Namespace, _console: Console) -> int:
    from ._results import read_results

    folder = _open_finished(args)
    _print_results(read_results(folder / "results.json"), args.json)
    if not args.json:
        print(f"report: {folder / 'report.html'}")
    return 0


def _status(args: argparse.Namespace, _console: Console) -> int:
    from ._records import OPEN, planned_trials
    from ._report import trial_table
    from ._results import load_records
    from ._study import Study
    from ._winners import counting, wanted_runs

    folder = _open(args)
    study = Study.from_dict(stored_study(folder / "study.json"))
    records = load_records(folder)
    unfinished = (folder / OPEN).exists() or not (folder / "results.json").exists()
    if unfinished:
        _close_abandoned(args, folder)
    if args.json:
        fields = ("name", "arm", "stage", "state", "reason", "step", "nll", "restarts", "params")
        print(json.dumps([{f: getattr(r, f) for f in fields} for r in records.values()], indent=1))
        return 0
    out = _stdout()
    out.print(trial_table(records, study))
    planned = sum(planned_trials(study, records, arm, s) for s in range(study.searches) for arm in study.arms)
    for stage in ("search", "select", "confirm"):
        wanted = planned if stage == "search" else wanted_runs(study, stage)
        ended = sum(r.state != "running" for r in counting(study, records, stage))
        if wanted:
            print(f"{stage}: {ended} of {wanted} ended")
    if unfinished and not _at_work(folder):
        where = _option("--storage", args.storage, Path("mlruns")) + _option("--tracking-uri", args.tracking_uri, None)
        print(f"no process is at work on it. To go on: {shlex.join(['hylorada', 'run', args.study, *where])}")
    if lost := [r.restarts for r in records.values() if r.restarts]:
        print(f"restarts: {sum(lost)}, of {len(lost)} trials whose process or machine was lost")
    return 0


def _option(name: str, value: object, default: object) -> list[str]:
    return [] if value == default else [name, str(value)]


def _at_work(folder: Path) -> bool:
    """Whether a process runs this study: it then holds the lock."""
    try:
        with study_lock(folder):
            return False
    except (Timeout, OSError):  # in a folder that can't be written to, nobody knows
        return True


def _close_abandoned(args: argparse.Namespace, folder: Path) -> None:
    """A process that was killed could not end its MLflow runs."""
    from ._records import read_id
    from ._tracking import reconcile

    read_id(folder)
    if told := reconcile(args.tracking_uri or default_uri(args.storage), args.study, folder):
        print(f"hylorada: {told}", file=sys.stderr)


def _evaluate(args: argparse.Namespace, _console: Console) -> int:
    from ._evaluate import Request, measure

    request = Request.of(args.adapter, {name: getattr(args, name) for name in Request.options()})
    values, notes = measure(request)
    for note in notes:
        print(f"hylorada: {note}", file=sys.stderr)
    if args.json:
        finite = {k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in values.items()}
        print(json.dumps(finite, allow_nan=False))  # JSON has no NaN, which a tenth without tokens gives
    else:
        what = f"{request.model} with {request.adapter}" if request.adapter else request.model
        print(f"{what} on {request.data}, split {request.split}, {values['blocks']} x {request.block_size} tokens")
        print(
            f"NLL {values['nll']:.6f}  PPL {values['ppl']:.4f}  bits per byte {values['bits_per_byte']:.4f}  "
            f"tokens {values['tokens']}"
        )
    return 0


def _export(args: argparse.Namespace, _console: Console) -> int:
    from ._export import export_winner

    found = export_winner(_open_finished(args), args.output, arm=args.arm, seed=args.seed)
    if args.json:
        print(json.dumps({**found, "output": str(args.output)}, indent=1))
    else:
        print(f"{args.output}: {found['run']} of study {found['study']!r}, test PPL {found['test_ppl']:.4f}")
    return 0


def _bench(args: argparse.Namespace, console: Console) -> int:
    import dataclasses

    from ._bench._options import BenchOptions, check
    from ._bench._run import run_bench
    from ._bench._table import print_bench

    values = {**vars(args), "parts": args.rows, "ray": not args.no_processes}
    plan = check(BenchOptions(**{f.name: values[f.name] for f in dataclasses.fields(BenchOptions)}))
    if args.json not in (None, "-") and not Path(args.json).absolute().parent.is_dir():
        raise InputError(f"json {args.json!r}: its folder does not exist")
    bench = run_bench(plan, lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))
    if args.json == "-":
        print(json.dumps(bench.to_dict()))
        return 0
    if args.json is not None:
        Path(args.json).write_text(json.dumps(bench.to_dict(), indent=1))
    print_bench(bench, _stdout())
    return 0


def _ui(args: argparse.Namespace, _console: Console) -> int:
    import subprocess

    uri = args.tracking_uri or default_uri(args.storage)
    if not args.tracking_uri and not (args.storage / "mlflow.db").exists():
        raise InputError(f"storage {str(args.storage)!r} has no mlflow.db yet; run a study first, or give --storage")
    with socket.socket(socket.AF_INET6 if ":" in args.host else socket.AF_INET) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as MLflow's server does
        try:
            taken.bind((args.host, args.port))
        except (OSError, OverflowError) as error:  # MLflow would say so, and end as if all were well
            raise InputError(f"can't serve on {args.host}:{args.port}: {error}; choose another --port") from error
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--host", args.host]
    # without the last part it opens on traces of agents
    page = f"http://{args.host}:{args.port}/#/experiments?workflowType=machine_learning"
    print(f"MLflow: {page} (Ctrl-C ends it)", flush=True)
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command += ["--port", str(args.port), "--workers", "1"]
    server = subprocess.Popen(command, env=environment, start_new_session=True)  # MLflow leaves its workers behind
    try:
        return server.wait()
    except KeyboardInterrupt:  # SIGTERM and a closed terminal too
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
        return 0


_COMMANDS = {
    "run": _run,
    "extend": _extend,
    "resolve": _resolve,
    "list": _list,
    "show": _show,
    "report": _report,
    "status": _status,
    "evaluate": _evaluate,
    "export": _export,
    "bench": _bench,
    "ui": _ui,
}
