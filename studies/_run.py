"""One study from its checks to its verdict."""

import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hylorada import InputError

from ._devices import Devices
from ._environment import make_private, short_folder
from ._experiment import check_artifacts
from ._faults import StudyStopped, as_stop
from ._files import write_atomically
from ._job import Job
from ._panel import Panel
from ._paths import path_problem
from ._points import notes, target_modules
from ._provenance import code_version, command_line, package_versions
from ._report import write_html
from ._results import Results, gather
from ._store import OPEN, Store
from ._study import Study
from ._tracking import Tracker, check_tracking, default_uri, unwritable

if TYPE_CHECKING:
    from ._campaign import Stage

_MOST_SEATS = 1024
_LONG = 1000  # characters a token: a text longer than that many blocks surely holds one


@dataclass(frozen=True, kw_only=True)
class Options:
    """Where a study runs and what it writes to.

    Attributes:
        storage: folder for ``mlflow.db``, ``artifacts/``, ``studies/`` and ``cache/``.
        tracking_uri: of MLflow; None is SQLite in ``storage``.
        address: of a Ray cluster; None is this machine.
        seats: trials in a pack; None is 4 on a CPU, and measured on a GPU.
        wait: seconds to wait for a cluster's first node that trials can run on.
    """

    storage: Path
    tracking_uri: str | None = None
    address: str | None = None
    seats: int | None = None
    wait: float = 5

    def study_folder(self, name: str) -> Path:
        return self.storage / "studies" / name

    @property
    def uri(self) -> str:
        return self.tracking_uri or default_uri(self.storage)


@dataclass(frozen=True)
class Material:
    """The checked inputs of a study: tokenised text and what identifies text and base."""

    blocks: Mapping[str, Any]
    provenance: Mapping[str, Any]

    def inputs(self) -> dict[str, str]:
        """What identifies base and text; a study folder is tied to it."""
        return {
            k: str(v) for k, v in self.provenance.items() if k.endswith("_fingerprint") and not k.startswith("study")
        }


def prepare(study: Study, options: Options, join: Callable[[], None] | None = None) -> Material:
    """Check everything that can be checked before any compute, and tokenise.

    Args:
        study: to run.
        options: where.
        join: joins a cluster and checks it, before the text's cache is written.

    Raises:
        InputError: all problems found; nothing has been written.
    """
    from hylorada import load_tokenizer
    from hylorada._bases import target_problems

    problems, base, text = _inputs(study.to_dict(), options)
    if base is not None and (targets := target_modules(study)):
        problems += target_problems(study.model, targets)
    if join is not None and not problems:
        join()
    blocks: dict[str, Any] = {}
    if base is not None and text is not None:
        tokenizer = _attempt(problems, load_tokenizer, study.model)
        if tokenizer is not None:
            blocks = _blocks(problems, study, options, text, tokenizer)
    if problems or base is None or text is None:
        raise InputError(problems)
    return Material(blocks, _provenance(study, base, text, blocks))


def input_problems(values: Mapping[str, Any], options: Options) -> list[str]:
    """What is wrong with base, text and places to write to; for a study that is itself wrong elsewhere."""
    return _inputs(values, options)[0]


def _inputs(values: Mapping[str, Any], options: Options) -> tuple[list[str], Any, Any]:
    """Problems, base and text, as far as these fields of a study are there and of the right type."""
    from hylorada import inspect_base, load_text

    problems = []
    if problem := path_problem(options.storage) or unwritable(options.storage):
        problems.append(f"storage {str(options.storage)!r} can't be written: {problem}")
    if options.tracking_uri is not None:
        unusable = check_tracking(options.tracking_uri)
        name = values.get("name")
        problems += unusable or (check_artifacts(options.tracking_uri, name) if isinstance(name, str) else [])
    problems += _address_problems(options.address)
    if options.seats is not None and not 1 <= options.seats <= _MOST_SEATS:
        limit = "least 1" if options.seats < 1 else f"most {_MOST_SEATS}"
        problems.append(f"seats must be at {limit}, got {options.seats}")
    model, data, column, size = (values.get(k) for k in ("model", "data", "text_column", "block_size"))
    base = _attempt(problems, inspect_base, model) if isinstance(model, str) else None
    if base and base.max_positions and isinstance(size, int) and size > base.max_positions:
        problems.append(f"block_size {size} exceeds model limit {base.max_positions} ({model})")
    text = None
    if isinstance(data, str) and isinstance(column, str | None):
        text = _attempt(problems, load_text, data, text_column=column)
    return problems, base, text


def _address_problems(address: str | None) -> list[str]:
    """Whether anything listens at a cluster's address: Ray itself waits for minutes."""
    if address is None or address == "auto":
        return []
    if address.startswith("ray://"):
        return [f"address {address!r}: Ray Client is not supported; run on a node, with auto or HOST:6379"]
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        return [f"address {address!r} must be auto or HOST:PORT"]
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, UnicodeError) as error:  # the second of names that can't be looked up
        return [f"address {address!r} can't be reached: {error}"]
    return []


def _blocks(problems: list[str], study: Study, options: Options, text: Any, tokenizer: Any) -> dict[str, Any]:
    """The blocks of each split; a text that may be too short is tried before anything is written."""
    from hylorada import build_blocks

    limits = {"train": None, "validation": study.eval_blocks, "test": study.test_blocks}
    long = {s for s in limits if sum(map(len, text.splits[s])) > _LONG * study.block_size}
    blocks = {}
    for split in sorted(limits, key=lambda s: (s in long, s == "train")):
        if problems and split in long:
            continue
        cache = options.storage / "cache" if split in long and split == "train" else None
        found = _attempt(
            problems, build_blocks, text.splits[split], tokenizer, study.block_size, split=split, cache_dir=cache
        )
        if found is not None and split == "test" and found.num_blocks < 2:
            problems.append(
                f"split 'test': 1 block of {study.block_size} tokens, the verdict needs 2; lower block_size or add text"
            )
        elif found is not None:
            limit = limits[split]
            blocks[split] = found.head(min(limit, found.num_blocks) if limit else None)
    return blocks


def _attempt(problems: list[str], function: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except InputError as error:
        problems += error.problems
        return None


def _provenance(study: Study, base: Any, text: Any, blocks: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "command": command_line(),
        **code_version(),
        **{f"version.{k}": v for k, v in package_versions().items()},
        "model": study.model,
        "model_fingerprint": base.fingerprint,
        "model_revision": base.revision,
        "model_type": base.model_type,
        "data": study.data,
        "data_fingerprint": text.fingerprint,
        "data_revision": text.revision,
        "block_size": study.block_size,
        **{f"{s}_blocks": b.num_blocks for s, b in blocks.items()},
        **{f"{s}_fingerprint": b.fingerprint for s, b in blocks.items()},
        "dtype": study.dtype,
        "seed": study.seed,
        "study_fingerprint": study.fingerprint(),
    }


class Interrupted(KeyboardInterrupt):
    """The process was asked to end (Ctrl-C or SIGTERM)."""


@contextmanager
def _ending_on_signals() -> Iterator[Callable[[], None]]:
    """Within it SIGINT and SIGTERM raise :class:`Interrupted`.

    Yields:
        A check that raises it again: an exception that comes up in some library's callback may be swallowed there.
    """
    asked = []

    def end(*_: object) -> None:
        asked.append(True)
        raise Interrupted

    def check() -> None:
        if asked:
            raise Interrupted

    before = {s: signal.signal(s, end) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_study(study: Study, options: Options, console: Console) -> Results:
    """Search, confirm, report; a study that was broken off goes on where it was.

    Args:
        study: checked.
        options: where to run.
        console: for the live panel and a few lines.

    Returns:
        The results, which also lie in the study folder as ``results.json`` and ``report.html``.

    Raises:
        InputError: bad input, before anything is written; or what the probe found (see :func:`hylorada.probe`), which
            leaves a study without trials.
        StudyStopped: storage, processes or machines don't let it go on; the state is saved.
        KeyboardInterrupt: the same, on the user's wish.
    """
    try:
        return _run_whole(study, options, console)
    except (InputError, StudyStopped):
        raise
    except Exception as error:
        if stop := as_stop(error):
            raise stop from error
        raise


def _run_whole(study: Study, options: Options, console: Console) -> Results:
    with ExitStack() as stack:
        workspace = short_folder()
        stack.callback(shutil.rmtree, workspace, ignore_errors=True)
        devices = Devices(study, options, workspace)
        stack.callback(devices.close)
        if options.address is None:
            make_private(workspace)
        material = devices.material = prepare(study, options, devices.join if options.address else None)
        for note in notes(study):
            console.print(f"hylorada: note: {note}", highlight=False, markup=False, soft_wrap=True)
        store = Store(options.study_folder(study.name), study)
        stack.callback(store.close)
        store.bind_inputs(material.inputs())
        if not (store.folder / "results.json").exists():
            devices.start()  # its host loads the base while MLflow makes its tables
        return _tracked(devices, store, options, console)


def _tracked(devices: Devices, store: Store, options: Options, console: Console) -> Results:
    """Run with the parent and all children closed truthfully at the end, whatever it is."""
    name = store.study.name
    artifacts = None if options.uri.startswith("http") else options.storage / "artifacts" / name
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    tracker = Tracker(options.uri, name, artifacts=artifacts, study_id=study_id(store.folder), say=say)
    try:
        tracker.describe(devices.provenance, _parent_params(store.study))
        write_atomically(store.folder / OPEN, "")
        with _ending_on_signals() as check:
            results = _run(devices, store, tracker, console, check)
    except (KeyboardInterrupt, SystemExit) as error:  # Ray turns SIGTERM into SystemExit
        devices.close()
        tracker.abort(list(store.records.values()), "KILLED")
        raise Interrupted from error
    except Exception:
        devices.close()
        tracker.abort(list(store.records.values()), "FAILED")
        raise
    (store.folder / OPEN).unlink(missing_ok=True)
    return results


def study_id(folder: Path) -> str:
    """The id of a study folder, made at its first run; it ties the folder to its MLflow run."""
    path = folder / "id"
    if not path.exists():
        write_atomically(path, os.urandom(8).hex())
    return path.read_text().strip()


def _parent_params(study: Study) -> dict[str, Any]:
    plain = {k: v for k, v in study.to_dict().items() if k not in ("arms", "comparisons", "defaults")}
    return {**plain, **{f"defaults.{k}": v for k, v in study.defaults.items()}, "rungs": list(study.rungs())}


def _run(devices: Devices, store: Store, tracker: Tracker, console: Console, check: Callable[[], None]) -> Results:
    from ._campaign import Confirm, Ledger, Search, winners  # imports Ray, which reads the environment

    study = store.study
    with ExitStack() as stack:
        panel = stack.enter_context(Panel(store, console))
        ledger = Ledger(store, tracker, panel)
        search = Search(ledger)
        if search.remaining():
            panel.say(f"{study.name}: {study.trials} trials for each of {', '.join(study.arms)}; {_rungs(study)}")
            devices.cluster.probe([_first_job(study, arm) for arm in study.arms])
            panel.begin("search", sum(map(store.planned, study.arms)))
            _exhaust(search, lambda: Search(ledger), devices, check)
            _tell_exhausted(store, panel)
        best = winners(store)
        confirm = Confirm(ledger, best.records)
        if confirm.remaining():
            panel.say(f"confirm: {', '.join(r.name for r in best.records)} x {study.seeds} fresh paired seeds")
            panel.begin("confirm", study.seeds * len(best.records))
            _exhaust(confirm, lambda: Confirm(ledger, best.records), devices, check)
        base = _base(store, devices)
    results = gather(store, base, devices.provenance, list(best.missing))
    _write(results, store, tracker)
    return results


def _tell_exhausted(store: Store, panel: Panel) -> None:
    """Arms that had fewer trials than asked for."""
    for arm in store.study.arms:
        if len(store.of("search", arm)) < store.study.trials:
            points = store.study.arms[arm].space.size()
            panel.say(f"{arm}: search space exhausted: {points} of {points} points evaluated")


def _exhaust(stage: "Stage", reopen: Callable[[], "Stage"], devices: Devices, check: Callable[[], None]) -> None:
    """Run a stage until nothing of it is left: Tune may end with trials that it could not start again."""
    while count := stage.remaining():
        devices.cluster.run(stage, check)
        stage = reopen()
        if stage.remaining() >= count:
            raise StudyStopped(f"Ray Tune has ended with {stage.remaining()} trials left to do")


def _first_job(study: Study, arm: str) -> Job:
    """An arm's first point, to be tried out."""
    adapter, training = study.configs(arm, study.start(arm))
    return Job(
        name=f"probe {arm}",
        adapter=adapter.to_dict(),
        training=training.to_dict(),
        seed=study.seed,
        data_seed=study.seed,
        report_steps=(),
        folder="",
    )


def _rungs(study: Study) -> str:
    steps = [*study.rungs(), study.max_steps]
    return "rungs " + " -> ".join(map(str, steps)) + " steps"


def _base(store: Store, devices: Devices) -> dict[str, Any] | None:
    """The base's own test figures, measured once, while there is a host; None where none is needed."""
    path = store.folder / "base.json"
    if not path.exists() and devices.started:
        write_atomically(path, json.dumps(devices.cluster.evaluate_base("test")))
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def _write(results: Results, store: Store, tracker: Tracker) -> None:
    write_atomically(store.folder / "results.json", json.dumps(results.to_dict(), indent=1))
    write_html(results, store.records, store.study, store.folder / "report.html")
    figures = {f"test/ppl_{a.arm}": a.ppl for a in results.arms}
    for c in results.comparisons:
        figures[f"test/change_{c.arm}_vs_{c.reference}_percent"] = c.change
    files = {store.folder / name: "" for name in ("results.json", "report.html", "study.json")}
    records = list(store.records.values())
    for record in records:
        if record.stage == "confirm":
            files[store.trial_folder(record.name) / "test_block_nll.npy"] = f"block_nll/{record.name}"
    tracker.finish(records, files, figures)
