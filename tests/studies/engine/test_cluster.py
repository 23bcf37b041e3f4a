"""Studies on real Ray nodes: refusals before anything is trained, and nodes that come and go."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_nodes import Nodes, can_hide
from faults import assert_same, outcome
from study_runs import SMALL, Command, Done, read_trials, run_cli, wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.faults]

# Nothing depends on the order of reports: proposals are drawn at random, without ASHA, and each
# pack has one trial.
WIDE = (*SMALL, "--trials=3", "--seats=1", "--set=grace_steps=0")
_ASK = """
import sys, pathlib, ray
from studies.engine.nodes import Gate, training_nodes
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
storage = pathlib.Path(sys.argv[2])
gate = Gate(storage, storage / "studies" / "new", sys.argv[3:], patience=1)
print("\\n".join(gate.admit(training_nodes())))
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Start a cluster whose head has no resources for trials."""
    with Nodes(cpus=0) as cluster:
        yield cluster


def run_on(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Done:
    for name, value in nodes.environment.items():
        monkeypatch.setenv(name, value)
    return run_cli("run", "learnable_bucketing", f"--address={nodes.address}", *arguments)


def old_torch(place: Path) -> Path:
    """Return a folder of packages in which torch has version 1.0."""
    folder = place / "packages" / "torch-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    return folder.parent


def reports(place: Path) -> bool:
    """Return whether a study in this folder has its first report."""
    return any(place.glob("**/studies/wide/trials/*/reports.jsonl"))


def test_cluster_without_cpus_or_gpus_is_refused(
    nodes: Nodes, toy_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_on(
        nodes,
        monkeypatch,
        f"--model={toy_model}",
        f"--storage={tmp_path / 'runs'}",
        "--wait=0",
        *SMALL,
    )
    assert done.code == 2
    needs = "each trial needs a share of a CPU or of a GPU; largest node has 0 CPU and 0 GPU"
    assert done.err.startswith(f"hylorada: {needs}; --wait SECONDS")
    assert not (tmp_path / "runs").exists()


def test_nodes_that_do_not_fit_are_named(nodes: Nodes, tmp_path: Path) -> None:
    storage, model = tmp_path / "runs", tmp_path / "model"
    storage.mkdir()
    model.mkdir()
    joined = [nodes.add("fits"), nodes.add("old", packages=old_torch(tmp_path))]
    expected = ["node 127.0.0.4 (old) has torch 1.0, this one "]
    if can_hide():  # a mount namespace of its own needs privileges
        joined.append(nodes.add("blind", hidden=tmp_path))
        expected = [
            f"'{model}' is not visible from node 127.0.0.5 (blind)",
            *expected,
            f"storage '{storage}' is not visible from node 127.0.0.5 (blind); "
            "put --storage on a file system that all",
        ]
    command = [sys.executable, "-c", _ASK, nodes.address, str(storage), str(model)]
    done = subprocess.run(
        command, env=nodes.environment, capture_output=True, text=True, timeout=90, check=True
    )
    problems = done.stdout.splitlines()
    assert [p.startswith(e) for p, e in zip(problems, expected, strict=True)] == [True] * len(
        expected
    ), problems
    assert not any(storage.iterdir())
    for node in joined:
        node.kill()


def cached(model: str, place: Path, commit: str) -> Path:
    """Make a Hugging Face cache that holds a base as ``me/toy``."""
    repository = place / "hub" / "models--me--toy"
    shutil.copytree(model, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return place


def test_node_that_lacks_the_base_is_named(
    nodes: Nodes, toy_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is one with another commit; the base is in the driver's cache, and there is no network."""
    ours = cached(toy_model, tmp_path / "ours", "a" * 40)
    other = cached(toy_model, tmp_path / "other", "b" * 40)
    hubs = {"has": ours, "lacks": tmp_path / "empty", "differs": other}
    joined = [nodes.add(name, hub=hub) for name, hub in hubs.items()]
    monkeypatch.setenv("HF_HOME", str(ours))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = run_on(
        nodes, monkeypatch, "--model=me/toy", f"--storage={tmp_path / 'runs'}", "--wait=30", *SMALL
    )
    for node in joined:
        node.kill()
    assert done.code == 2, done.err
    differs, lacks = sorted(done.err.splitlines())
    assert "(lacks): model 'me/toy': not a folder, not cached, and the hub" in lacks + differs
    version = (
        f"(differs) has another version of model 'me/toy': {'b' * 40}, this one has {'a' * 40}"
    )
    assert version in lacks + differs
    assert not (tmp_path / "runs").exists()


def test_nodes_join_and_die_in_mid_study(
    nodes: Nodes, toy_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends bit for bit as an uninterrupted study on one machine does."""
    place = [f"--model={os.path.relpath(toy_model)}", "--name=wide"]  # nodes are in other folders
    alone = run_cli("run", "learnable_bucketing", *place, f"--storage={tmp_path / 'alone'}", *WIDE)
    assert alone.code == 0, alone.err
    for name, value in nodes.environment.items():
        monkeypatch.setenv(name, value)
    stays = nodes.add("stays")
    wide = [*place, f"--storage={tmp_path / 'wide'}", f"--address={nodes.address}", *WIDE]
    process = Command("run", "learnable_bucketing", *wide)
    wait_until(lambda: reports(tmp_path / "wide") or process.poll() is not None)
    for pid in stays.hosts():  # or it would be done before the other node is there
        os.kill(pid, signal.SIGSTOP)
    joins = nodes.add("joins")
    wait_until(lambda: bool(joins.hosts()) or process.poll() is not None)
    joins.kill()
    for pid in stays.hosts():
        os.kill(pid, signal.SIGCONT)
    out, err = process.communicate(timeout=240)
    stays.kill()
    assert process.returncode == 0, out + err
    assert_same(outcome(tmp_path / "wide", "wide"), outcome(tmp_path / "alone", "wide"), exact=True)
    trials = read_trials(tmp_path / "wide" / "studies" / "wide")
    assert {t["state"] for t in trials} == {"complete"}
    assert sum(t["restarts"] for t in trials) >= 1
    assert json.loads((tmp_path / "wide/studies/wide/results.json").read_text())["verdict"]


@pytest.mark.slow
def test_node_that_joins_with_other_packages_stops_the_study(
    nodes: Nodes, toy_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the node, and the same command resumes without it."""
    for name, value in nodes.environment.items():
        monkeypatch.setenv(name, value)
    stays = nodes.add("stays")
    wide = [
        f"--model={toy_model}",
        "--name=wide",
        f"--storage={tmp_path}",
        f"--address={nodes.address}",
        *WIDE,
    ]
    process = Command("run", "learnable_bucketing", *wide)
    wait_until(lambda: reports(tmp_path) or process.poll() is not None)
    for pid in stays.hosts():
        os.kill(pid, signal.SIGSTOP)
    old = nodes.add("old", packages=old_torch(tmp_path / "site"))
    _, err = process.communicate(timeout=240)
    assert process.returncode == 3, err
    assert "(old) has torch 1.0, this one " in err
    old.kill()
    again = run_cli("run", "learnable_bucketing", *wide)
    stays.kill()
    assert again.code == 0, again.err
    assert {t["state"] for t in read_trials(tmp_path / "studies" / "wide")} == {"complete"}
