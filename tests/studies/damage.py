"""Damage every file of a study folder in many ways and see what the commands make of it.

``python tests/studies/damage.py [MUTATIONS]`` prints a table: for each file how many mutations changed nothing, were
refused with a line, or were mended with a note. A changed verdict, winner or next proposal without a word, or any other
exception than a refusal, is listed as wrong.
"""

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

from made_studies import make

from hylorada import InputError
from studies._cli import main
from studies._files import stored_study
from studies._results import gather
from studies._store import Store
from studies._study import Study

Content = dict[Path, bytes]
Mutate = Callable[[random.Random, bytes], bytes]
_REGION = 24  # bytes that are zeroed or cut out


@dataclass(frozen=True)
class Finding:
    """What became of one mutation."""

    study: str
    file: str
    kind: str
    outcome: str  # same, refused, mended, wrong
    told: str


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
    return content[:at] + draws.choice([b"%d" % d for d in range(10) if 48 + d != content[at]]) + content[at + 1 :]


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
    found = content.splitlines(keepends=True)
    at, other = draws.randrange(len(found)), draws.randrange(len(found))
    kind = draws.randrange(3)
    if kind == 2:
        found[at], found[other] = found[other], found[at]
    return b"".join(found[:at] + found[at : at + 1] * (2 * kind if kind < 2 else 1) + found[at + 1 :])


def garbage(draws: random.Random, content: bytes) -> bytes:
    """Replace all of it."""
    return draws.choice([b"", b"{}", b"[]", b"null", b"\xff\xfe", draws.randbytes(len(content))])


CHANGES: tuple[Mutate, ...] = (flip, flip, digit, digit, digit, cut, zero, cut_out, lines, garbage)


class Subject:
    """One study folder that is damaged and brought back again and again."""

    def __init__(self, storage: Path, *, finished: bool) -> None:
        self.finished, self.storage = finished, storage
        self.folder = storage / "studies" / "made"
        make(self.folder, finished=finished).close()
        # of the same definition and names, so that whole files can be exchanged
        make(storage / "studies" / "twin", finished=finished, seed=1).close()
        self.twin = storage / "studies" / "twin"
        Store(self.folder, self._study()).close()
        self.content = {p: p.read_bytes() for p in sorted(self.folder.rglob("*")) if p.is_file() and p.name != "lock"}
        code, self.seen = self.observe()
        assert code == "same", self.seen
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

    def observe(self) -> tuple[str, Any]:
        """What all commands say: ``refused`` or ``mended`` with the lines, or ``same`` with what was seen."""
        seen: list[Any] = []
        told: list[str] = []
        for command in ("report", "status") if self.finished else ("status",):
            out, err = StringIO(), StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                code = main([command, "made", "--json", f"--storage={self.storage}"])
            if code == 2:
                told += err.getvalue().splitlines()
                assert err.getvalue().startswith("hylorada: "), err.getvalue()
            else:
                assert code == 0, (code, err.getvalue())
                seen.append((command, json.loads(out.getvalue())))
        try:
            store = Store(self.folder, self._study())
        except InputError as error:
            told += error.problems
        else:
            try:
                mended = list(store.notes)
                seen.append(("open", self._opened(store)))
            except InputError as error:
                told, mended = [*told, *error.problems], []
            finally:
                store.close()
            if mended and not told:
                return "mended", (seen, mended)
        return ("refused", (seen, told)) if told else ("same", seen)

    def _opened(self, store: Store) -> Any:
        """What the study would do next."""
        if (store.folder / "inputs.json").exists() or store.records:
            store.bind_inputs({"model_fingerprint": "31dca1d1a8d06193", "data_fingerprint": "e2188a9e41b52a53"})
        if self.finished:
            results = gather(store, {"ppl": 31.5}, {}, [])
            return json.loads(json.dumps([store.id, asdict(results)]))
        jobs = [store.job(r).to_dict() | {"seen": r.step} for r in store.records.values() if r.state == "running"]
        return json.loads(json.dumps([store.id, jobs, [store.propose(arm).params for arm in store.study.arms]]))

    def judge(self, path: Path, kind: str) -> Finding:
        """Look at the folder as it is now, damaged, and bring it back."""
        file = path.name
        study = "finished" if self.finished else "broken off"
        try:
            outcome, found = self.observe()
        except Exception as error:  # what a user would see as a traceback
            outcome, found = "wrong", ([], [f"{type(error).__name__}: {error}"])
        seen, told = (found, []) if outcome == "same" else found
        expected = dict(self.seen)
        if differing := [name for name, value in seen if value != expected[name]]:
            outcome, told = "wrong", [f"{differing} differ; {told}"]
        self.restore()
        return Finding(study, file, kind, outcome, "; ".join(told))

    def mutations(self, draws: random.Random, count: int) -> Iterator[Finding]:
        """Damage files in turn, each in another way every time."""
        paths = list(self.content)
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
        """Lose a file, swap it with a neighbour's of the same name, or replace it by another study's or any other."""
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


def campaign(storage: Path, count: int, seed: int = 0) -> list[Finding]:
    """Damage a finished study and one that was broken off, half of the mutations each."""
    found: list[Finding] = []
    for finished in (True, False):
        subject = Subject(storage / ("finished" if finished else "broken off"), finished=finished)
        found += subject.mutations(random.Random(seed), count // 2)
    return found


def table(found: list[Finding]) -> str:
    """One row a study and file, one column an outcome."""
    counts = Counter((f.study, f.file, f.outcome) for f in found)
    outcomes = ("same", "refused", "mended", "wrong")
    rows = [f"| {'study':10} | {'file':24} | " + " | ".join(f"{o:>7}" for o in outcomes) + " |"]
    for study, file in sorted({(f.study, f.file) for f in found}):
        numbers = " | ".join(f"{counts[study, file, o]:7}" for o in outcomes)
        rows.append(f"| {study:10} | {file:24} | {numbers} |")
    return "\n".join(rows)


if __name__ == "__main__":
    began = time.monotonic()
    place = Path(tempfile.mkdtemp())
    try:
        findings = campaign(place, int(sys.argv[1]) if len(sys.argv) > 1 else 2400)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(table(findings))
    for wrong in (f for f in findings if f.outcome == "wrong"):
        print(wrong)
    kinds = Counter((f.kind, f.outcome) for f in findings)
    print(dict(sorted(kinds.items())), f"{time.monotonic() - began:.0f} s", file=sys.stderr)
