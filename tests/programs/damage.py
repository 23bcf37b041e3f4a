"""Damage every file of a study folder in many ways, and judge how the commands react.

``python tests/programs/damage.py [MUTATIONS [SEED]]`` prints a table: for each file how many
mutations changed nothing, were refused with a line, or were mended with a note. A verdict, winner
or next proposal that changes silently is listed as wrong, and so is any exception other than a
refusal.
"""

import faulthandler
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from made_studies import Until, make

from hylorada import InputError
from studies.analysis.results import gather
from studies.cli.arguments import parse
from studies.cli.commands import run
from studies.files.folder_files import stored_study
from studies.search.campaign import find_winners
from studies.spec.study import Study
from studies.trials.store import Store

Content = dict[Path, bytes]
Mutate = Callable[[random.Random, bytes], bytes]
UNTIL: tuple[Until, ...] = ("end", "confirm", "search")
_WEIGHTS = {"optuna.db": 8, "results.json": 5, "study.json": 4, "id": 2, "inputs.json": 2}
_HANG_S = 120  # a mutation that takes longer ends the program
_REGION = 24  # bytes that are zeroed or cut out


@dataclass(frozen=True)
class Finding:
    """The outcome of one mutation."""

    until: str
    file: str
    kind: str
    outcome: str  # same, refused, mended, wrong
    messages: str


def flip(draws: random.Random, content: bytes) -> bytes:
    """Flip one bit."""
    at = draws.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << draws.randrange(8))]) + content[at + 1 :]


def digit(draws: random.Random, content: bytes) -> bytes:
    """Change one decimal digit: the file stays well-formed."""
    places = [i for i, c in enumerate(content) if 48 <= c <= 57]
    if not places:
        return flip(draws, content)
    at = draws.choice(places)
    return (
        content[:at]
        + draws.choice([b"%d" % d for d in range(10) if 48 + d != content[at]])
        + content[at + 1 :]
    )


def cut(draws: random.Random, content: bytes) -> bytes:
    """Cut off the end."""
    return content[: draws.randrange(len(content))]


def zero(draws: random.Random, content: bytes) -> bytes:
    """Zero a region."""
    at = draws.randrange(len(content))
    return content[:at] + bytes(len(content[at : at + _REGION])) + content[at + _REGION :]


def cut_out(draws: random.Random, content: bytes) -> bytes:
    """Cut a region out of the middle."""
    at = draws.randrange(len(content))
    return content[:at] + content[at + _REGION :]


def lines(draws: random.Random, content: bytes) -> bytes:
    """Drop, repeat or exchange a whole line."""
    rows = content.splitlines(keepends=True)
    at, other = draws.randrange(len(rows)), draws.randrange(len(rows))
    kind = draws.randrange(3)
    if kind == 2:
        rows[at], rows[other] = rows[other], rows[at]
    return b"".join(rows[:at] + rows[at : at + 1] * (2 * kind if kind < 2 else 1) + rows[at + 1 :])


def garbage(draws: random.Random, content: bytes) -> bytes:
    """Replace the whole content."""
    return draws.choice([b"", b"{}", b"[]", b"null", b"\xff\xfe", draws.randbytes(len(content))])


CHANGES: tuple[Mutate, ...] = (flip, flip, digit, digit, digit, cut, zero, cut_out, lines, garbage)


class Subject:
    """A study folder that is damaged and restored again and again."""

    def __init__(self, storage: Path, until: Until) -> None:
        self.until = until
        commands = ("report", "status") if until == "end" else ("status",)
        self._arguments = {
            c: parse([c, "made", "--json", f"--storage={storage}"]) for c in commands
        }
        self.folder = storage / "studies" / "made"
        make(self.folder, until).close()
        # The same definition and names, so that whole files can be exchanged.
        make(storage / "studies" / "twin", until, seed=1).close()
        self.twin = storage / "studies" / "twin"
        Store(self.folder, self._study()).close()
        self.content = {
            p: p.read_bytes()
            for p in sorted(self.folder.rglob("*"))
            if p.is_file() and p.name != "lock"
        }
        self._noted = False  # whether `status` has printed a note on what it can't show
        outcome, self.seen, messages = self.observe()
        assert outcome == "same", messages
        self.restore()

    def _study(self) -> Study:
        return Study.from_dict(stored_study(self.folder / "study.json"))

    def restore(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self.content:
                path.unlink()
        for path, content in self.content.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)

    def observe(self) -> tuple[str, dict[str, Any], list[str]]:
        """Run all commands; return ``same``, ``refused`` or ``mended``, results and output."""
        seen: dict[str, Any] = {}
        messages: list[str] = []
        self._noted = False
        for command in self._arguments:
            code, out, err = self._command(command)
            if (
                code == 2
                and err
                and all(line.startswith("hylorada: ") for line in err.splitlines())
            ):
                messages += err.splitlines()
            else:
                assert code == 0, (code, err)
                seen[command] = json.loads(out)
                self._noted = command == "status" and bool(err)
        notes: list[str] = []
        try:
            store = Store(self.folder, self._study())
            try:
                notes = self._open(store, seen)
            finally:
                store.close()
        except InputError as error:
            messages += error.problems
        return ("refused" if messages else "mended" if notes else "same"), seen, messages or notes

    def _command(self, name: str) -> tuple[int, str, str]:
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run(self._arguments[name])
        return code, out.getvalue(), err.getvalue()

    def _open(self, store: Store, seen: dict[str, Any]) -> list[str]:
        """Open the study, and return its next actions and its notes."""
        store.bind_inputs(
            {"model_fingerprint": "31dca1d1a8d06193", "data_fingerprint": "e2188a9e41b52a53"}
        )
        notes = list(store.notes)
        best = list(find_winners(store).winners.values())
        if self.until == "search":
            # The last known step of a running trial is not a decision.
            jobs = {
                r.name: store.job(r).to_dict()
                for r in store.records.values()
                if r.state == "running"
            }
            proposals = [store.propose(arm).params for arm in store.study.arms]
            seen["next"] = _plain([store.id, jobs, proposals])
            return notes
        ended = {
            r.name for r in store.records.values() if r.stage == "confirm" and r.state == "complete"
        }
        lost = {
            w.name("confirm", s) for w in best for s in range(1 + (self.until == "end"))
        } - ended
        seen["lost without a word"] = [name for name in sorted(lost) if name not in " ".join(notes)]
        seen["next"] = _plain(
            [store.id, [w.record.name for w in best], [w.record.adapter for w in best]]
        )
        if not lost:
            seen["results"] = _plain(asdict(gather(store, {"ppl": 31.5}, {}, [])))
        return notes

    def judge(self, path: Path, kind: str) -> Finding:
        """Judge the damaged folder as it is now, and restore it."""
        try:
            outcome, seen, messages = self.observe()
        except Exception as error:  # a user would see a traceback
            outcome, seen, messages = "wrong", {}, [f"{type(error).__name__}: {error}"]
        if differing := [n for n, value in seen.items() if not self._equals(n, value)]:
            outcome, messages = "wrong", [f"{differing} differ", *messages]
        self.restore()
        return Finding(self.until, path.name, kind, outcome, "; ".join(messages))

    def _equals(self, name: str, value: Any) -> bool:
        """Return whether a command shows the same as before the damage.

        With a note, `status` may show less. Where the results are lost, `report` is marked partial
        and gives none.
        """
        if name == "report" and value["partial"]:
            return "verdict" not in value
        if name != "status":
            return bool(value == self.seen.get(name))
        before = self.seen[name]
        return self._noted or (len(value) == len(before) and all(map(_is_as_before, value, before)))

    def mutations(self, draws: random.Random, count: int) -> Iterator[Finding]:
        """Damage the files in turn, each in another way every time."""
        paths = [p for p in self.content for _ in range(_WEIGHTS.get(p.name, 1))]
        while count > 0:
            for path in draws.sample(paths, len(paths)):
                if count <= 0:
                    return
                count -= 1
                yield self.judge(path, self._damage(draws, path))

    def _damage(self, draws: random.Random, path: Path) -> str:
        content = self.content[path]
        if not content or draws.random() < 0.25:
            return self._exchange(draws, path)
        change = draws.choice(CHANGES)
        path.write_bytes(change(draws, content))
        return change.__name__

    def _exchange(self, draws: random.Random, path: Path) -> str:
        """Remove a file, swap it with a neighbour's, or replace it by another one."""
        kind = draws.choice(["lose", "swap", "twin", "other"])
        neighbours = [p for p in self.content if p.name == path.name and p != path]
        twin = self.twin / path.relative_to(self.folder)
        if kind == "swap" and neighbours:
            other = draws.choice(neighbours)
            path.write_bytes(self.content[other])
            other.write_bytes(self.content[path])
        elif kind == "twin" and twin.is_file():
            path.write_bytes(twin.read_bytes())
        elif kind == "other":
            path.write_bytes(self.content[draws.choice(list(self.content))])
        else:
            kind = "lose"
            path.unlink()
        return kind


def _is_as_before(row: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return whether a row of `status` is the same, except for a running trial's last report.

    A crash may lose that report.
    """
    late = (
        {"step": before["step"] - 2, "nll": row["nll"]}
        if row["state"] == before["state"] == "running"
        else {}
    )
    return row in (before, before | late)


def _plain(values: Any) -> Any:
    return json.loads(json.dumps(values))


def campaign(storage: Path, count: int, seed: int = 0) -> Iterator[Finding]:
    """Damage a finished and two interrupted studies in turn, with a third of the mutations each."""
    subjects = [Subject(storage / until, until) for until in UNTIL]
    ways = [s.mutations(random.Random(f"{seed} {s.until}"), count // len(UNTIL)) for s in subjects]
    for findings in zip(*ways, strict=True):
        yield from findings


def table(findings: list[Finding]) -> str:
    """Return a table with a row for each study and file and a column for each outcome."""
    counts = Counter((f.until, f.file, f.outcome) for f in findings)
    outcomes = ("same", "refused", "mended", "wrong")
    rows = [f"| {'until':7} | {'file':24} | " + " | ".join(f"{o:>7}" for o in outcomes) + " |"]
    for study, file in sorted({(f.until, f.file) for f in findings}):
        numbers = " | ".join(f"{counts[study, file, o]:7}" for o in outcomes)
        rows.append(f"| {study:7} | {file:24} | {numbers} |")
    return "\n".join(rows)


if __name__ == "__main__":
    began = time.monotonic()
    place = Path(tempfile.mkdtemp())
    findings: list[Finding] = []
    try:
        for finding in campaign(place, *map(int, sys.argv[1:] or ["2400"])):
            faulthandler.dump_traceback_later(_HANG_S, exit=True)
            findings.append(finding)
            if finding.outcome == "wrong":
                print(finding, flush=True)
    finally:  # an interrupted run prints the findings so far
        shutil.rmtree(place, ignore_errors=True)
        print(table(findings))
        print(f"{len(findings)} mutations in {time.monotonic() - began:.0f} s")
        print(dict(sorted(Counter((f.kind, f.outcome) for f in findings).items())))
