"""The command line."""

import argparse
import importlib
import json
import os
import pkgutil
import shlex
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hylorada import InputError, nearest

from ._environment import prepare_environment
from ._faults import StudyStopped
from ._job import ERROR_LOG

if TYPE_CHECKING:
    from ._run import Options

_EPILOG = """\
examples:
  hylorada run learnable_bucketing                              built-in base and text, no network
  hylorada run learnable_bucketing --model gpt2 --data wikitext:wikitext-2-raw-v1 --block-size 512 --name wt2 \\
      --set defaults.max_steps=500 --trials 16 --seeds 5        your own base and text
  hylorada show learnable_bucketing                             the whole study as YAML, to edit and run with --config
  hylorada report learnable_bucketing --json                    what it found

Running the same command again resumes; nothing finished is run twice.
exit codes: 0 done, 2 bad input, 3 a trial crashed or no arm finished, 130 interrupted with state saved
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code.
    """
    prepare_environment()
    args = _parsed(arguments)
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
    try:
        code: int = args.command(args, console)
    except InputError as error:
        for problem in dict.fromkeys(error.problems):
            print(f"hylorada: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    args = parser.parse_args(arguments)
    for name, value in vars(args).items():
        if (value == [] and name != "set") or (isinstance(value, list) and [] in value):
            parser.error(f"argument --{name.replace('_', '-')}: '--' is no value")  # argparse makes [] of --name=--
    return args


def definitions() -> dict[str, Any]:
    """The study definitions: every public module of this package that has a STUDY."""
    import studies

    found = {}
    for module in pkgutil.iter_modules(studies.__path__):
        if not module.name.startswith("_"):
            found[module.name] = importlib.import_module(f"studies.{module.name}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hylorada",
        description="Does learning where position buckets lie make HyLoRADA adapters better, on your model and text?",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hylorada {version('hylorada')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_extend(commands)
    _add_simple(commands, "list", _list, "study definitions, and the studies in the storage folder", json_output=True)
    show = _add_simple(
        commands, "show", _show, "a study's settings as YAML, to edit and run with --config", json_output=True
    )
    _add_study_options(show)
    for name, command, text in (
        ("report", _report, "the table and the verdict of a study"),
        ("status", _status, "how far a study has come"),
    ):
        _add_named(commands, name, command, text)
    _add_evaluate(commands)
    _add_export(commands)

    _add_bench(commands)
    ui = _add_simple(commands, "ui", _ui, "serve the MLflow page on this machine")
    ui.add_argument("--port", type=int, default=5000, help="default: %(default)s")
    ui.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; default: %(default)s (this machine only)"
    )
    return parser


def _add_simple(commands: Any, name: str, command: Any, text: str, *, json_output: bool = False) -> Any:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(command=command)
    _add_storage(parser)
    if json_output:
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add_named(commands: Any, name: str, command: Any, text: str) -> None:
    parser = _add_simple(commands, name, command, text, json_output=True)
    parser.add_argument("study", help="name of a study that has been run")


def _add_storage(parser: Any) -> None:
    parser.add_argument("--storage", type=Path, default=Path("mlruns"), help="folder; default: %(default)s")
    parser.add_argument("--tracking-uri", help="MLflow: a database or server; default: sqlite in the storage folder")


def _add_study_options(parser: Any) -> None:
    parser.add_argument(
        "study", nargs="?", help="definition (see `hylorada list`) or the name of one that has been run"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with the fields to change")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="change one field; may be repeated")
    parser.add_argument("--name", help="of this study: folder and MLflow experiment; default: the definition's")
    parser.add_argument("--model", help="base: tiny, smollm2-135m, a hub id or a folder")
    parser.add_argument(
        "--data", help="text: pydocs, a hub name:config, a folder or a file (.txt .jsonl .parquet .csv)"
    )
    parser.add_argument("--text-column", help="column of a table; default: found by itself")
    parser.add_argument("--block-size", type=int, metavar="T", help="tokens in a block")
    parser.add_argument("--trials", type=int, metavar="N", help="search trials for each arm")
    parser.add_argument("--seeds", type=int, metavar="S", help="paired seeds of the confirm stage")
    parser.add_argument("--seed", type=int, help="of the whole study")


def _add_run(commands: Any) -> None:
    text = "search, confirm and report; the same command again resumes"
    parser = _add_simple(commands, "run", _run, text, json_output=True)
    _add_study_options(parser)
    _add_place(parser)


def _add_extend(commands: Any) -> None:
    text = "go on with a study that has been run: more search trials, more paired seeds"
    parser = _add_simple(commands, "extend", _extend, text, json_output=True)
    parser.add_argument("study", help="name of a study that has been run")
    parser.add_argument("--trials", type=int, metavar="N", help="search trials for each arm, in all")
    parser.add_argument("--seeds", type=int, metavar="S", help="paired seeds of the confirm stage, in all")
    _add_place(parser)


def _add_place(parser: Any) -> None:
    parser.add_argument("--address", help="Ray cluster to join, auto or HOST:6379; default: this machine")
    parser.add_argument("--seats", type=int, metavar="K", help="trials in a pack; default: 4 on CPUs, measured on GPUs")
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
    parser.set_defaults(command=_evaluate)
    exported = "default: %s, or what an exported adapter was tested on"
    parser.add_argument("--adapter", type=Path, metavar="DIR", help="a saved or exported adapter; default: none")
    parser.add_argument("--model", help=exported % "tiny")
    parser.add_argument("--data", help=exported % "pydocs")
    parser.add_argument("--text-column", help="column of a table")
    parser.add_argument("--split", default="test", help="train, validation or test; default: %(default)s")
    parser.add_argument("--block-size", type=int, metavar="T", help=exported % "128")
    parser.add_argument("--blocks", type=int, metavar="N", help="first N blocks; " + exported % "all")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float64"), help="of the base; " + exported % "float32"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_export(commands: Any) -> None:
    text = "write the winner of a finished study: an adapter that stock PEFT loads too, and its model card"
    parser = _add_simple(commands, "export", _export, text, json_output=True)
    parser.add_argument("study", help="name of a study that has been run")
    parser.add_argument("--arm", help="whose winner; default: the arm of lowest test PPL")
    parser.add_argument("--seed", type=int, metavar="N", help="which paired seed's run; default: the first")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write")


def _add_bench(commands: Any) -> None:
    text = "speed and memory of packs against plain loops and processes, on this machine"
    parser = commands.add_parser("bench", help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(command=_bench)
    parser.add_argument("--model", help="base; default: tiny")
    parser.add_argument("--shape", help="random weights in the shape of gpt2 or smollm2 instead of a model")
    parser.add_argument("--data", help="text; default: pydocs, random tokens with --shape")
    parser.add_argument("--block-size", type=int, metavar="T", help="tokens in a block; default: 128, 512 on a GPU")
    parser.add_argument("--batch-size", type=int, metavar="N", help="blocks a step; default: 2, 4 on a GPU")
    parser.add_argument("--r", type=int, default=8, help="LoRA rank; default: %(default)s")
    parser.add_argument("--dtype", help="of the base; default: float32, bfloat16 on a GPU")
    parser.add_argument("--packs", metavar="K,K", help="sizes of packs; default: 1,2,4,... up to --max-pack")
    parser.add_argument("--max-pack", type=int, metavar="K", help="default: 8, 64 on a GPU, as memory allows")
    parser.add_argument("--steps", type=int, default=20, help="of each trial in a measurement; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement; default: %(default)s")
    parser.add_argument("--rows", metavar="A,B", help="of plain,processes,packs,designs,memory,report; default: all")
    parser.add_argument("--processes", type=int, metavar="N", help="that share the device; default: cores, 8 on a GPU")
    parser.add_argument("--no-processes", action="store_true", help="leave out what needs Ray: processes and report")
    parser.add_argument("--search", action="store_true", help="time whole searches too, process starts included")
    parser.add_argument("--trials", type=int, default=24, metavar="N", help="of --search; default: %(default)s")
    parser.add_argument("--search-steps", type=int, default=48, help="of its trials; default: %(default)s")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write the profile of one step of the last pack")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="print JSON, or write it to a file")


def _study_values(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The definition, then the file, then the options, then ``--set``; and the problems with the last."""
    from ._overrides import override

    values = dict(_base_values(args))
    options = {
        "name": args.name,
        "model": args.model,
        "data": args.data,
        "text_column": args.text_column,
        "block_size": args.block_size,
        "trials": args.trials,
        "seeds": args.seeds,
        "seed": args.seed,
    }
    values |= {k: v for k, v in options.items() if v is not None}
    return override(values, args.set)


def _checked_study(args: argparse.Namespace, options: Any = None) -> Any:
    """The study asked for; where it is wrong, all that is wrong with the other inputs is told too."""
    from ._study import Study

    values: dict[str, Any] = {}
    try:
        values, problems = _study_values(args)
        study = Study.from_dict(values)
    except InputError as error:
        problems = [*(problems if values else []), *error.problems]
    if problems and options is not None:
        from ._run import input_problems

        problems += input_problems(values, options)
    if problems:
        raise InputError(problems)
    return study


def _base_values(args: argparse.Namespace) -> Mapping[str, Any]:
    from ._overrides import merge, read_file

    file: dict[str, Any] = read_file(args.config) if args.config else {}
    known = definitions()
    name = str(args.study or file.get("definition") or "")
    if not name:
        raise InputError(f"name a study: {', '.join(known)}; or give --config FILE with a definition")
    if name in known:
        return merge(_matching(known[name].STUDY, file, args.config), file)
    stored = _study_folder(args.storage, name)
    if stored is None and not args.study and "arms" in file:
        return file  # a definition of the user's own
    if stored is None:
        run = [p.parent.name for p in (args.storage / "studies").glob("*/study.json")]
        raise InputError(f"unknown study {name!r}; {nearest(name, [*known, *run])}")
    return merge(_matching(_stored(stored / "study.json"), file, args.config), file)


def _stored(path: Path) -> Mapping[str, Any]:
    """The values of a study that has been run."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} can't be read: {error}; put it back") from error
    if not isinstance(values, dict) or "definition" not in values:
        raise InputError(f"{path} is damaged: it holds no study; put it back")
    return values


def _matching(values: Mapping[str, Any], file: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """``values``, if the file is not of another definition."""
    asked, given = values["definition"], file.get("definition", values["definition"])
    if asked != given:
        raise InputError(f"{path} is of definition {given!r}, the study asked for is of {asked!r}")
    return values


def _study_folder(storage: Path, name: str) -> Path | None:
    """Where a study of this name has been run; None if none has."""
    folder = storage / "studies" / name
    inside = name not in ("", ".", "..") and Path(name).name == name
    return folder if inside and os.path.exists(folder / "study.json") else None


def _run(args: argparse.Namespace, console: Console) -> int:
    options = _options(args)
    return _run_study(_checked_study(args, options), options, args, console)


def _extend(args: argparse.Namespace, console: Console) -> int:
    from ._study import Study

    stored = _stored(_open(args) / "study.json")
    asked = {name: getattr(args, name) for name in ("trials", "seeds") if getattr(args, name) is not None}
    if not asked:
        counts = f"--trials (now {stored['trials']}) or --seeds (now {stored['seeds']})"
        raise InputError(f"extend {args.study!r} by what? give {counts}")
    return _run_study(Study.from_dict({**stored, **asked}), _options(args), args, console)


def _options(args: argparse.Namespace) -> "Options":
    from ._run import Options

    return Options(
        storage=Path(os.path.expanduser(args.storage)).absolute(),
        tracking_uri=args.tracking_uri,
        address=args.address,
        seats=args.seats,
        wait=args.wait,
    )


def _run_study(study: Any, options: "Options", args: argparse.Namespace, console: Console) -> int:
    from ._run import run_study

    try:
        results = run_study(study, options, console)
    except (KeyboardInterrupt, SystemExit):  # Ray turns SIGTERM into the second
        print(f"interrupted; state saved. To go on: {_resume_command()}", file=sys.stderr)
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
    _print_results(results, args.json)
    if not args.json:
        print(f"report: {folder / 'report.html'}   MLflow: hylorada ui --storage {shlex.quote(str(args.storage))}")
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
    return Console(width=None if sys.stdout.isatty() else 120)


def _print_results(results: Any, as_json: bool) -> None:
    from ._report import table

    if as_json:
        print(json.dumps(results.to_dict(), indent=1))
        return
    out = _stdout()
    out.print(table(results))
    out.print(results.verdict, highlight=False, markup=False, soft_wrap=True)
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

    values = _checked_study(args).to_dict()
    print(json.dumps(values, indent=1) if args.json else to_yaml(values), end="")
    return 0


def _open(args: argparse.Namespace) -> Path:
    """The folder of a study that has been run."""
    folder = _study_folder(args.storage, args.study)
    if folder is None:
        there = [p.parent.name for p in (args.storage / "studies").glob("*/study.json")]
        hint = nearest(args.study, there) if there else f"there is none in {args.storage}"
        raise InputError(f"no study {args.study!r} has been run; {hint}")
    return folder


def _open_finished(args: argparse.Namespace) -> Path:
    folder = _open(args)
    if not (folder / "results.json").exists():
        raise InputError(
            f"study {args.study!r} has not finished; see `hylorada status {args.study}`, or run it to its end"
        )
    return folder


def _report(args: argparse.Namespace, _console: Console) -> int:
    from ._results import read_results

    folder = _open_finished(args)
    _print_results(read_results(folder / "results.json"), args.json)
    if not args.json:
        print(f"report: {folder / 'report.html'}")
    return 0


def _status(args: argparse.Namespace, _console: Console) -> int:
    from ._report import trial_table
    from ._results import load_records
    from ._store import OPEN, planned_trials
    from ._study import Study

    folder = _open(args)
    study = Study.from_dict(_stored(folder / "study.json"))
    records = load_records(folder)
    if (folder / OPEN).exists():
        _close_abandoned(args, folder)
    if args.json:
        fields = ("name", "arm", "stage", "state", "reason", "step", "nll", "restarts", "params")
        print(json.dumps([{f: getattr(r, f) for f in fields} for r in records.values()], indent=1))
        return 0
    out = _stdout()
    out.print(trial_table(records, study))
    planned = sum(planned_trials(study, records, arm) for arm in study.arms)
    for stage, wanted in (("search", planned), ("confirm", study.seeds * len(study.arms))):
        ended = sum(r.stage == stage and r.state != "running" for r in records.values())
        print(f"{stage}: {ended} of {wanted} ended")
    if lost := [r.restarts for r in records.values() if r.restarts]:
        print(f"restarts: {sum(lost)}, of {len(lost)} trials whose process or machine was lost")
    return 0


def _close_abandoned(args: argparse.Namespace, folder: Path) -> None:
    """A process that was killed could not end its MLflow runs."""
    from ._tracking import default_uri, reconcile

    if told := reconcile(args.tracking_uri or default_uri(args.storage), args.study, folder):
        print(f"hylorada: {told}", file=sys.stderr)


def _evaluate(args: argparse.Namespace, _console: Console) -> int:
    from ._evaluate import Request, measure

    request = Request.of(args.adapter, {name: getattr(args, name) for name in Request.options()})
    values, notes = measure(request)
    for note in notes:
        print(f"hylorada: {note}", file=sys.stderr)
    if args.json:
        print(json.dumps(values))
    else:
        print(
            f"NLL {values['nll']:.6f}  PPL {values['ppl']:.4f}  bits per byte {values['bits_per_byte']:.4f}  "
            f"tokens {values['tokens']}"
        )
    return 0


def _export(args: argparse.Namespace, _console: Console) -> int:
    from ._export import export_winner

    found = export_winner(_open_finished(args), args.output.expanduser(), arm=args.arm, seed=args.seed)
    if args.json:
        print(json.dumps({**found, "output": str(args.output)}, indent=1))
    else:
        print(f"{args.output}: {found['run']} of study {found['study']!r}, test PPL {found['test_ppl']:.4f}")
    return 0


def _bench(args: argparse.Namespace, console: Console) -> int:
    import dataclasses

    from ._bench import BenchOptions, check, print_bench, run_bench

    values = {**vars(args), "parts": args.rows, "ray": not args.no_processes}
    plan = check(BenchOptions(**{f.name: values[f.name] for f in dataclasses.fields(BenchOptions)}))
    if args.json not in (None, "-") and not Path(args.json).absolute().parent.is_dir():
        raise InputError(f"json {args.json!r}: its folder does not exist")
    try:
        bench = run_bench(plan, lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))
    except KeyboardInterrupt:
        return 130
    if args.json == "-":
        print(json.dumps(bench.to_dict()))
        return 0
    if args.json is not None:
        Path(args.json).write_text(json.dumps(bench.to_dict(), indent=1))
    print_bench(bench, _stdout())
    return 0


def _ui(args: argparse.Namespace, _console: Console) -> int:
    import subprocess

    from ._tracking import default_uri

    uri = args.tracking_uri or default_uri(args.storage)
    if not args.tracking_uri and not (args.storage / "mlflow.db").exists():
        raise InputError(f"storage {str(args.storage)!r} has no mlflow.db yet; run a study first, or give --storage")
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--host", args.host]
    print(f"MLflow: http://{args.host}:{args.port} (Ctrl-C ends it)", flush=True)
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    try:
        return subprocess.run(
            [*command, "--port", str(args.port), "--workers", "1"], env=environment, check=False
        ).returncode
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
