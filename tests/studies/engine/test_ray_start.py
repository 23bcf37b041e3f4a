"""Ray around a study: private, closed to others, and its death reported in our words."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from study_runs import SMALL, Command, wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.faults]

_PROGRAM = """
import os, sys
from pathlib import Path
from rich.console import Console
from studies import learnable_bucketing
from studies.process.options import Options
from studies.runner.run import run_study
from studies.spec.study import Study

def start():
    import ray
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

if sys.argv[1] == "own":
    start()
before = dict(os.environ)
values = {**learnable_bucketing.STUDY, "model": sys.argv[2], "block_size": 32}
values |= {"trials": 1, "seeds": 1}
values |= {"eval_every": 2, "grace_steps": 2, "eval_blocks": 8, "test_blocks": 40}
values["defaults"] = {**values["defaults"], "max_steps": 4}
options = Options(storage=Path(sys.argv[3]))
results = run_study(Study.from_dict(values), options, Console(stderr=True))
import ray
print(len(results.arms), dict(os.environ) == before, ray.is_initialized())
if not ray.is_initialized():
    start()
print(ray.get(ray.remote(lambda: 5).remote()))
"""


def start(model: str, storage: Path, *options: str) -> Command:
    """Start a study, and wait until its first report."""
    process = Command(
        "run", "learnable_bucketing", f"--model={model}", f"--storage={storage}", *SMALL, *options
    )
    wait_until(lambda: any(storage.glob("**/reports.jsonl")) or process.poll() is not None, 300)
    return process


def ray_process(process: Command, name: str) -> int:
    pids = [
        p
        for p in process.pids()
        if Path(f"/proc/{p}/cmdline").read_text().split("\0")[0].endswith(f"/{name}")
    ]
    (pid,) = pids
    return pid


_HEADLESS = """
import os, signal, time
import psutil
from studies.process.environment import make_private, prepare_environment, short_folder
prepare_environment()
workspace = short_folder()
make_private(workspace)
from studies.engine.ray_start import start_ray, stop_ray
from studies.process.errors import StudyStopped
start_ray(None, workspace)
import ray
processes = psutil.Process().children(recursive=True)
(head,) = ray._private.worker._global_node.all_processes["gcs_server"]
os.kill(head.process.pid, signal.SIGKILL)
"""
_STUCK = f"""
{_HEADLESS}
ray.nodes()  # waits a minute for the head, and Ray then ends this process with exit code 1
"""
_STOPPED = f"""
{_HEADLESS}
try:
    time.sleep(30)
except StudyStopped:
    stop_ray()
_, left = psutil.wait_procs(processes, timeout=1)  # counts what nobody has reaped yet
alive = [process.name() for process in left if process.status() != psutil.STATUS_ZOMBIE]
print(len(processes) > 2, alive)
"""


def test_call_that_waits_for_the_dead_head_is_ended_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STUCK], capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stdout) == (3, "")
    *_, died, go_on = done.stderr.splitlines()
    assert died == "hylorada: Ray's own process 'gcs_server' has died (SIGKILL)"
    assert go_on.startswith("the study stopped; state saved. Resume with: ")


def test_ray_without_its_head_is_stopped_whole() -> None:
    """The agents of a raylet would outlive it for a minute, waiting for the head."""
    done = subprocess.run(
        [sys.executable, "-c", _STOPPED], capture_output=True, text=True, timeout=90
    )
    assert (done.returncode, done.stdout) == (0, "True []\n"), done.stderr


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_death_of_ray_itself_stops_the_study_by_name(
    name: str, toy_model: str, tmp_path: Path
) -> None:
    process = start(toy_model, tmp_path, "--json")
    os.kill(ray_process(process, name), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert err.splitlines()[-2] == f"hylorada: Ray's own process '{name}' has died (SIGKILL)"
    assert err.splitlines()[-1].startswith(
        "the study stopped; state saved. Resume with: hylorada run "
    )
    wait_until(lambda: not process.pids(), 30)


def test_files_of_a_running_ray_are_closed_to_others(toy_model: str, tmp_path: Path) -> None:
    process = start(toy_model, tmp_path)
    raylet = Path(f"/proc/{ray_process(process, 'raylet')}/environ").read_text().split("\0")
    (token,) = [Path(v.partition("=")[2]) for v in raylet if v.startswith("RAY_AUTH_TOKEN_PATH=")]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (token, token.parent)]
    sockets = list(token.parent.glob("*/session_*/sockets/raylet*"))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert modes == [0o600, 0o700]
    assert sockets
    assert not token.parent.exists()


@pytest.mark.parametrize(("whose", "goes_on"), [("own", True), ("private", False)])
def test_calling_program_keeps_its_ray_and_its_environment(
    whose: str, goes_on: bool, toy_model: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _PROGRAM, whose, toy_model, str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, f"3 True {goes_on}\n5\n"), done.stderr


def test_private_ray_is_refused_to_a_program_that_has_imported_ray(tmp_path: Path) -> None:
    """Ray has read its settings by then, and would listen on every interface without a token."""
    program = f"import ray\n{_PROGRAM}"
    command = [sys.executable, "-c", program, "private", "tiny", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "this program has imported ray" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "runs" / "studies").exists()


def test_uv_run_packs_nothing(toy_model: str, tmp_path: Path) -> None:
    """Ray recognises a program under ``uv run`` by the command lines of its parents."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(600 * 2**20)  # Ray's limit is 512 MiB
    study = [
        "run",
        "learnable_bucketing",
        f"--model={toy_model}",
        f"--storage={tmp_path / 'runs'}",
        *SMALL,
    ]
    child = [sys.executable, "-m", "hylorada_command", *study, "--trials=1", "--seeds=1"]
    (tmp_path / "run").write_text(
        f"import subprocess, sys\nsys.exit(subprocess.run({child!r}).returncode)\n"
    )
    uv = subprocess.run(
        ["uv", "run"],
        executable=sys.executable,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert uv.returncode == 0, uv.stderr


def test_first_two_runs_on_a_new_storage_get_on_at_once(toy_model: str, tmp_path: Path) -> None:
    few = [f"--model={toy_model}", f"--storage={tmp_path}", *SMALL, "--trials=1", "--seeds=1"]
    both = [
        Command("run", "learnable_bucketing", f"--name={name}", *few) for name in ("one", "two")
    ]
    for process in both:
        _, err = process.communicate(timeout=400)
        assert (process.returncode, "alembic" in err, "Traceback" in err) == (0, False, False), err


@pytest.mark.parametrize(
    ("option", "what"),
    [("-n 64", "open files"), ("-f 99", "the size of a file"), ("-v 9999999", "memory addresses")],
)
def test_limit_that_is_too_low_is_named(option: str, what: str, tmp_path: Path) -> None:
    line = 'ulimit $0; exec "$@"'
    study = [
        "-m",
        "studies.cli.main",
        "run",
        "learnable_bucketing",
        f"--storage={tmp_path / 'runs'}",
    ]
    command = ["bash", "-c", line, option, sys.executable, *study]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2, done.stderr
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"hylorada: the limit on {what} is ")
    assert said.endswith(f"raise it (ulimit {option[:2]})")
    assert not (tmp_path / "runs").exists()
