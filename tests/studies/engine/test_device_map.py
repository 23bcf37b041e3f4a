"""A base over all GPUs has one host, which owns them all; trials share them evenly."""

import asyncio
from typing import Any

import pytest

from hylorada import InputError
from studies import Options, get_study
from studies.analysis.forecast.forecast import Place
from studies.engine import cluster as cluster_module
from studies.engine.cluster import Cluster, visible_gpus
from studies.engine.registry import Registry
from studies.runner.inputs import prepare


def _nodes(*gpus: float) -> list[dict[str, Any]]:
    return [{"NodeID": f"n{i}", "Resources": {"GPU": g, "CPU": 8}} for i, g in enumerate(gpus)]


@pytest.fixture
def make_cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a cluster on nodes with these numbers of GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: True)

    def make(device_map: str, *gpus: float) -> tuple[Cluster, list[Any]]:
        started: list[Any] = []
        monkeypatch.setattr(
            cluster_module, "start_registry", lambda *arguments: started.extend(arguments)
        )
        monkeypatch.setattr(
            cluster_module, "nodes_with", lambda kind: _nodes(*gpus) if kind == "GPU" else []
        )
        engine = {"device_map": device_map}
        cluster = Cluster(
            address="auto",  # a private Ray would start its first host at once
            seats=6,
            batch_size=1,
            engine=engine,
            workspace=None,  # type: ignore[arg-type]
        )
        return cluster, started

    return make


def test_one_host_owns_all_gpus_and_trials_share_them(make_cluster: Any) -> None:
    cluster, started = make_cluster("auto", 4.0)
    assert started[-1] == "0,1,2,3"
    assert cluster._device("n0") == "0,1,2,3"
    assert cluster.resources == {"cpu": 0, "gpu": 0.5}  # two trials on each of four, for six seats
    assert cluster.place == Place("GPU", 1, 4)


def test_without_a_map_each_gpu_has_a_host_of_its_own(make_cluster: Any) -> None:
    cluster, started = make_cluster("none", 4.0)
    assert started[-1] == ""
    assert cluster.resources == {"cpu": 0, "gpu": 0.1666}
    assert cluster.place == Place("GPU", 4, 4)


def test_hidden_gpus_stay_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert visible_gpus(_nodes(2.0)) == "2,3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus(_nodes(2.0)) == "0,1"


def test_gpus_of_several_machines_are_refused() -> None:
    with pytest.raises(InputError, match="device_map uses the GPUs of one machine"):
        visible_gpus(_nodes(2.0, 2.0))


@pytest.mark.parametrize(("gpus", "hosts"), [("0,1", ["0,1"]), ("", ["0", "1"])])
def test_trials_of_all_gpus_come_to_the_host(
    monkeypatch: pytest.MonkeyPatch, gpus: str, hosts: list[str]
) -> None:
    made: list[str] = []
    registry = Registry({}, b"", None, gpus)
    monkeypatch.setattr(registry, "_make", lambda _node, gpu: made.append(gpu))

    async def ask() -> None:
        for gpu in ("0", "1", "0"):
            await registry.host("n0", gpu)

    asyncio.run(ask())
    assert made == hosts


def test_a_cluster_is_refused(tmp_path: Any, toy_model: str) -> None:
    study = get_study("learnable_bucketing", model=toy_model, device_map="auto")
    options = Options(storage=tmp_path, address="127.0.0.1:1")
    with pytest.raises(InputError, match="device_map 'auto' uses the GPUs of this machine; it can"):
        prepare(study, options)
