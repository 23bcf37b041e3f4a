"""The files in studies/clusters, checked as far as possible without a cloud."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

import studies
from studies.cli.arguments import parse

FOLDER = Path(studies.__file__).parent / "clusters"
FILES = {"aws.yaml": 2, "kuberay.yaml": 1, "slurm.sh": 1}  # with the `hylorada` commands in each

# From KubeRay's reference of ray.io/v1, release 1.6.
RAY_JOB = {
    *(
        "entrypoint",
        "backoffLimit",
        "shutdownAfterJobFinishes",
        "ttlSecondsAfterFinished",
        "rayClusterSpec",
    ),
    *(
        "submissionMode",
        "submitterPodTemplate",
        "activeDeadlineSeconds",
        "runtimeEnvYAML",
        "metadata",
        "suspend",
    ),
}
RAY_CLUSTER = {
    *(
        "rayVersion",
        "authOptions",
        "enableInTreeAutoscaling",
        "autoscalerOptions",
        "headGroupSpec",
        "workerGroupSpecs",
    ),
    "headServiceAnnotations",
}
HEAD_GROUP = {"rayStartParams", "template", "serviceType", "headService", "enableIngress"}
WORKER_GROUP = {
    *("groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts"),
    "rayStartParams",
    "template",
}


def read(name: str) -> str:
    return (FOLDER / name).read_text()


def commands(text: str) -> list[list[str]]:
    """Return the arguments of each ``hylorada`` command, comments included, with its variables."""
    lines = re.findall(r"hylorada ((?:run|status) .*?)(?:'|&|$)", text, re.MULTILINE)
    return [shlex.split(re.sub(r'\s"\$@"', "", line).replace("$ip:$port", "h:1")) for line in lines]


def test_every_file_is_known() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(FILES)


@pytest.mark.parametrize(("name", "count"), FILES.items())
def test_command_lines_are_ones_that_hylorada_takes(name: str, count: int) -> None:
    lines = commands(read(name))
    assert len(lines) == count
    for line in lines:
        args = parse(line)
        if line[0] == "run":
            assert args.address in ("auto", "h:1")
            assert args.wait >= 120


def test_aws_file_is_what_ray_takes() -> None:
    config = prepare_config(yaml.safe_load(read("aws.yaml")))
    validate_config(config)
    head, worker = (config["available_node_types"][kind] for kind in ("head", "gpu"))
    assert head["resources"] == {"CPU": 0}
    assert worker["resources"]["GPU"] == 1
    assert worker["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    with pytest.raises(Exception, match="was unexpected"):
        validate_config({**config, "max_wrokers": 2})


def test_kuberay_file_has_known_fields_and_valid_pods() -> None:
    claim, job = yaml.safe_load_all(read("kuberay.yaml"))
    check(claim)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    groups = cluster["workerGroupSpecs"]
    assert set(job["spec"]) <= RAY_JOB
    assert set(cluster) <= RAY_CLUSTER
    assert set(cluster["headGroupSpec"]) <= HEAD_GROUP
    assert [set(g) <= WORKER_GROUP for g in groups] == [True]
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    for group in (cluster["headGroupSpec"], *groups):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **group["template"]}
        check(pod)
        assert pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/shared"
    with pytest.raises(kubernetes_validate.ValidationError, match="Additional properties"):
        check({**pod, "spec": {**pod["spec"], "containres": []}})


def check(resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, "1.37", strict=True)


def test_slurm_file_passes_shellcheck() -> None:
    for command in (["bash", "-n"], [str(Path(sys.executable).with_name("shellcheck"))]):
        done = subprocess.run(
            [*command, FOLDER / "slurm.sh"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
