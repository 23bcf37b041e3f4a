"""The nodes of a joined cluster: which of them train, and whether each sees the storage and runs the same code.

A node that fits badly is found before anything is trained, not by the first trial that lands there.
"""

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from studies.process.provenance import code_digest, package_versions

PATIENCE_S = 60.0  # a share may take that long to show a new file
_ANSWER_S = 120.0  # for a node to start a process, import this package and look at the base
_SAME = (
    "hylorada",
    "torch",
    "transformers",
    "numpy",
)  # what a result depends on; Ray itself compares Ray and Python
_QUESTION = "question"

Node = Mapping[str, Any]  # as `ray.nodes` gives it


def nodes_with(kind: str) -> list[Node]:
    """Nodes that offer ``CPU`` or ``GPU``."""
    return [n for n in ray.nodes() if n["Alive"] and n["Resources"].get(kind)]


def training_nodes() -> list[Node]:
    """Nodes that trials run on: those with a GPU, if any has one, else those with CPUs."""
    return nodes_with("GPU") or nodes_with("CPU")


def wait_for(find: Callable[[], list[Node]], seconds: float) -> list[Node]:
    """What ``find`` gives as soon as that is something; nothing, if it stays at that."""
    end = time.monotonic() + seconds
    while not (nodes := find()) and time.monotonic() < end:
        time.sleep(0.5)
    return nodes


def called(node: Node) -> str:
    """A node as messages name it."""
    address, name = node["NodeManagerAddress"], node.get("NodeName")
    return f"{address} ({name if name and name != address else node['NodeManagerHostname']})"


@dataclass
class Gate:
    """Lets nodes in on which trials would come out as on this one.

    Attributes:
        storage: what the user calls the place that all nodes must see; for messages.
        folder: in it, where files are exchanged; made and removed again as far as it isn't there.
        needs: paths that each node must see as well.
        base: name and fingerprint of a base that each node must find by itself, in its own cache or packages.
        patience: seconds for files to show up at the other end.
        admitted: Ray's ids of the nodes that have been found to fit.
    """

    storage: Path
    folder: Path
    needs: Sequence[str] = ()
    base: tuple[str, str] | None = None
    patience: float = PATIENCE_S
    admitted: set[str] = field(default_factory=set)

    def admit(self, nodes: Sequence[Node]) -> list[str]:
        """Ask nodes, all at once, and let in those that fit.

        Returns:
            A line for each thing that is not as it must be, naming the node.
        """
        problems = {}
        with _exchange(self.folder) as place:
            token = secrets.token_hex(16)
            (place / _QUESTION).write_text(token)
            asked = {_ask(node, self._question(place, node, token)): node for node in nodes}
            ready, _ = ray.wait(
                list(asked), num_returns=len(asked), timeout=self.patience + _ANSWER_S
            )
            for ref, node in asked.items():
                problems[node["NodeID"]] = (
                    self._judged(node, ref, place, token)
                    if ref in ready
                    else [f"node {called(node)} doesn't answer"]
                )
        self.admitted |= {node for node, found in problems.items() if not found}
        return sorted(problem for found in problems.values() for problem in found)

    def _question(self, place: Path, node: Node, token: str) -> "_Question":
        name = self.base[0] if self.base else None
        return _Question(str(place), node["NodeID"], token, list(self.needs), name, self.patience)

    def _judged(self, node: Node, ref: Any, place: Path, token: str) -> list[str]:
        """What is wrong with one node, by its answer."""
        try:
            found = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            why = (str(error).strip().splitlines() or [""])[-1]
            return [
                f"node {called(node)} can't run hylorada: {why}; install the same packages on all nodes"
            ]
        except ray.exceptions.RayError:  # it has left the cluster
            return []
        problems = _differences(node, found["versions"])
        problems += self._base_problems(node, found)
        problems += [
            f"{path!r} is not visible from node {called(node)}" for path in found["unseen"]
        ]
        storage = f"storage {str(self.storage)!r}"
        if found["refused"]:
            problems.append(
                f"{storage} can't be written from node {called(node)}: {found['refused']}"
            )
        elif not found["visible"] or not _comes(place / node["NodeID"], token, self.patience):
            where = "put --storage on a file system that all nodes see"
            problems.append(f"{storage} is not visible from node {called(node)}; {where}")
        return problems

    def _base_problems(self, node: Node, found: Mapping[str, Any]) -> list[str]:
        if self.base is None:
            return []
        if found["lacks"]:
            return [f"node {called(node)}: {problem}" for problem in found["lacks"]]
        name, ours = self.base
        if found["fingerprint"] == ours:
            return []
        return [
            f"node {called(node)} has another version of model {name!r}: {found['fingerprint']}, this one {ours}"
        ]


@dataclass(frozen=True)
class _Question:
    """What one node is asked: the folder of the exchange, its own file there, and what it must hold and see."""

    place: str
    answer: str
    token: str
    needs: list[str]
    base: str | None
    patience: float


def node_of(node_id: str) -> Node:
    """A node by Ray's id of it."""
    return next(n for n in ray.nodes() if n["NodeID"] == node_id)


def _ask(node: Node, question: _Question) -> Any:
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    look = ray.remote(_look).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    return look.remote(question)


def _look(question: _Question) -> dict[str, Any]:
    """What a node sees; runs there, and leaves an answer in the shared folder."""
    visible = _comes(Path(question.place, _QUESTION), question.token, question.patience)
    refused = ""
    if visible:
        try:
            Path(question.place, question.answer).write_text(question.token)
        except OSError as error:
            refused = str(error.strerror)
    unseen = [path for path in question.needs if not os.path.exists(path)]
    base = _found_base(question.base) if question.base else {}
    return {
        "visible": visible,
        "refused": refused,
        "unseen": unseen,
        "versions": _versions(),
        **base,
    }


def _found_base(name: str) -> dict[str, Any]:
    """The fingerprint of a base as this node finds it, or why it finds none."""
    from hylorada import InputError, inspect_base  # imports torch

    try:
        return {"fingerprint": inspect_base(name).fingerprint, "lacks": []}
    except InputError as error:
        return {"fingerprint": None, "lacks": error.problems}


def _differences(node: Node, theirs: Mapping[str, str]) -> list[str]:
    ours = _versions()
    other = [k for k in _SAME if theirs.get(k) != ours.get(k)]
    problems = [
        f"node {called(node)} has {k} {theirs.get(k, '(none)')}, this one {ours.get(k)}"
        for k in other
    ]
    if not problems and theirs["code"] != ours["code"]:
        problems = [
            f"node {called(node)} runs other code of hylorada {ours['hylorada']} than this one"
        ]
    return [f"{p}; install the same packages on all nodes" for p in problems]


def _versions() -> dict[str, str]:
    """Without the part that says for which device a package was built: a driver needs no CUDA."""
    return {
        **{k: v.partition("+")[0] for k, v in package_versions().items()},
        "code": code_digest(),
    }


def _comes(path: Path, content: str, patience: float) -> bool:
    """Whether a file with this content shows up in time."""
    end = time.monotonic() + patience
    while True:
        try:
            os.listdir(path.parent)  # makes a network file system look again
            if path.read_text() == content:
                return True
        except OSError:
            pass
        if time.monotonic() > end:
            return False
        time.sleep(0.2)


@contextmanager
def _exchange(folder: Path) -> Iterator[Path]:
    """A new folder inside ``folder``; afterwards all is as it was."""
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    place = folder / f".nodes-{secrets.token_hex(4)}"
    try:
        place.mkdir(parents=True)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        for path in made:
            if path.exists() and not any(path.iterdir()):
                path.rmdir()
