"""The nodes of a joined cluster: which of them train, and the checks that they must pass.

The checks compare the code and the packages, and whether the node sees the storage and the base.
A node that doesn't fit is reported before anything is trained, not by the first trial placed on it.
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

PATIENCE_S = 60.0  # a network file system may take that long to show a new file
_ANSWER_S = 120.0  # for a node to start a process, import this package and inspect the base
# The packages that results depend on. Ray itself compares the versions of Ray and Python.
_SAME = ("hylorada", "torch", "transformers", "numpy")
_QUESTION = "question"

Node = Mapping[str, Any]  # an element of `ray.nodes()`


def nodes_with(kind: str) -> list[Node]:
    """Return the living nodes that offer a resource, ``CPU`` or ``GPU``."""
    return [n for n in ray.nodes() if n["Alive"] and n["Resources"].get(kind)]


def training_nodes() -> list[Node]:
    """Return the nodes that run trials: those with a GPU if any has one, else those with CPUs."""
    return nodes_with("GPU") or nodes_with("CPU")


def wait_for(find: Callable[[], list[Node]], seconds: float) -> list[Node]:
    """Call ``find`` until it returns a node or the time is up, and return its last result."""
    end = time.monotonic() + seconds
    while not (nodes := find()) and time.monotonic() < end:
        time.sleep(0.5)
    return nodes


def describe(node: Node) -> str:
    """Return the address and name of a node for messages."""
    address, name = node["NodeManagerAddress"], node.get("NodeName")
    return f"{address} ({name if name and name != address else node['NodeManagerHostname']})"


@dataclass
class Gate:
    """The check that a node must pass: trials on it would give the same results as on this one.

    Attributes:
        storage: the folder that all nodes must see, as the user named it; for messages.
        folder: folder inside the storage where files are exchanged. Missing parts of its path are
            created, and removed afterwards.
        needs: further paths that each node must see.
        base: name and fingerprint of a base that each node loads from its own cache or packages.
        patience: seconds to wait for a file to appear on the other side.
        admitted: Ray's ids of the nodes that have passed.
    """

    storage: Path
    folder: Path
    needs: Sequence[str] = ()
    base: tuple[str, str] | None = None
    patience: float = PATIENCE_S
    admitted: set[str] = field(default_factory=set)

    def admit(self, nodes: Sequence[Node]) -> list[str]:
        """Check nodes, all at once, and admit those that pass.

        Returns:
            A line for each problem, naming the node.
        """
        problems = {}
        with _exchange(self.folder) as place:
            token = secrets.token_hex(16)
            (place / _QUESTION).write_text(token)
            answers = {_ask(node, self._question(place, node, token)): node for node in nodes}
            ready, _ = ray.wait(
                list(answers), num_returns=len(answers), timeout=self.patience + _ANSWER_S
            )
            for ref, node in answers.items():
                problems[node["NodeID"]] = (
                    self._problems(node, ref, place, token)
                    if ref in ready
                    else [f"node {describe(node)} doesn't answer"]
                )
        self.admitted |= {node_id for node_id, lines in problems.items() if not lines}
        return sorted(line for lines in problems.values() for line in lines)

    def _question(self, place: Path, node: Node, token: str) -> "_Question":
        name = self.base[0] if self.base else None
        return _Question(str(place), node["NodeID"], token, list(self.needs), name, self.patience)

    def _problems(self, node: Node, ref: Any, place: Path, token: str) -> list[str]:
        """Return what is wrong with one node according to its answer."""
        try:
            answer = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            why = (str(error).strip().splitlines() or [""])[-1]
            remedy = "install the same packages on all nodes"
            return [f"node {describe(node)} can't run hylorada: {why}; {remedy}"]
        except ray.exceptions.RayError:  # it has left the cluster
            return []
        problems = _version_problems(node, answer["versions"])
        problems += self._base_problems(node, answer)
        problems += [
            f"{path!r} is not visible from node {describe(node)}" for path in answer["unseen"]
        ]
        storage = f"storage {str(self.storage)!r}"
        if answer["refused"]:
            problems.append(
                f"{storage} can't be written from node {describe(node)}: {answer['refused']}"
            )
        elif not answer["visible"] or not _appears(place / node["NodeID"], token, self.patience):
            where = "put --storage on a file system that all nodes see"
            problems.append(f"{storage} is not visible from node {describe(node)}; {where}")
        return problems

    def _base_problems(self, node: Node, answer: Mapping[str, Any]) -> list[str]:
        if self.base is None:
            return []
        if answer["lacks"]:
            return [f"node {describe(node)}: {problem}" for problem in answer["lacks"]]
        name, ours = self.base
        theirs = answer["fingerprint"]
        if theirs == ours:
            return []
        return [
            f"node {describe(node)} has another version of model {name!r}: {theirs}, "
            f"this one has {ours}"
        ]


@dataclass(frozen=True)
class _Question:
    """The check of one node, sent to it.

    Attributes:
        place: folder of the exchange.
        answer: name of the file that the node writes there.
        token: content that the question file must have and the answer gets.
        needs: paths that the node must see.
        base: name of a base that the node must find by itself.
        patience: seconds to wait for the question file to appear.
    """

    place: str
    answer: str
    token: str
    needs: list[str]
    base: str | None
    patience: float


def node_of(node_id: str) -> Node:
    """Return the node with this Ray id."""
    return next(n for n in ray.nodes() if n["NodeID"] == node_id)


def _ask(node: Node, question: _Question) -> Any:
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    look = ray.remote(_look).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    return look.remote(question)


def _look(question: _Question) -> dict[str, Any]:
    """Write an answer file into the shared folder, and return what this node sees."""
    visible = _appears(Path(question.place, _QUESTION), question.token, question.patience)
    refused = ""
    if visible:
        try:
            Path(question.place, question.answer).write_text(question.token)
        except OSError as error:
            refused = str(error.strerror)
    unseen = [path for path in question.needs if not os.path.exists(path)]
    base = _inspect_base(question.base) if question.base else {}
    return {
        "visible": visible,
        "refused": refused,
        "unseen": unseen,
        "versions": _versions(),
        **base,
    }


def _inspect_base(name: str) -> dict[str, Any]:
    """Return the fingerprint of a base on this node, or why there is none."""
    from hylorada import InputError, inspect_base  # imports torch

    try:
        return {"fingerprint": inspect_base(name).fingerprint, "lacks": []}
    except InputError as error:
        return {"fingerprint": None, "lacks": error.problems}


def _version_problems(node: Node, theirs: Mapping[str, str]) -> list[str]:
    ours = _versions()
    different = [k for k in _SAME if theirs.get(k) != ours.get(k)]
    problems = [
        f"node {describe(node)} has {k} {theirs.get(k, '(none)')}, this one has {ours.get(k)}"
        for k in different
    ]
    if not problems and theirs["code"] != ours["code"]:
        problems = [
            f"node {describe(node)} has different source code of hylorada {ours['hylorada']} "
            "than this one"
        ]
    return [f"{p}; install the same packages on all nodes" for p in problems]


def _versions() -> dict[str, str]:
    """Return versions without a build suffix such as ``+cpu``, because a driver needs no CUDA."""
    return {
        **{k: v.partition("+")[0] for k, v in package_versions().items()},
        "code": code_digest(),
    }


def _appears(path: Path, content: str, patience: float) -> bool:
    """Return whether a file with this content appears in time."""
    end = time.monotonic() + patience
    while True:
        try:
            os.listdir(path.parent)  # makes a network file system refresh the folder
            if path.read_text() == content:
                return True
        except OSError:
            pass
        if time.monotonic() > end:
            return False
        time.sleep(0.2)


@contextmanager
def _exchange(folder: Path) -> Iterator[Path]:
    """Create a new folder inside ``folder``, and remove afterwards whatever was created."""
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
