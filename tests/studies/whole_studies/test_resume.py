"""A study stopped by signals and started again with the same command; kills: test_faults.py."""

import os
import pty
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faults import outcome
from mlflow import MlflowClient
from study_runs import SMALL, Command, read_trials, run_cli, wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.faults]


ARMS = ("baseline", "fixed", "learnable")


def command(model: str, storage: Path) -> list[str]:
    return ["run", "learnable_bucketing", f"--model={model}", f"--storage={storage}", *SMALL]


def ended(folder: Path) -> dict[str, Any]:
    """Return the finished trials with the time at which they were last written."""
    paths = {
        t["name"]: folder / "trials" / t["name"]
        for t in read_trials(folder)
        if t["state"] != "running"
    }
    return {
        name: ((p / "trial.json").stat().st_mtime_ns, (p / "reports.jsonl").read_text())
        for name, p in paths.items()
    }


def stop(process: Command, folder: Path, trials: int, signals: Sequence[signal.Signals]) -> str:
    """Send signals once this many trials have ended, and return the output.

    No process may be left.
    """
    wait_until(lambda: len(ended(folder)) >= trials or process.poll() is not None, 300)
    for number in signals:
        # A terminal's Ctrl-C and a batch system's SIGTERM reach the whole group.
        os.killpg(process.pid, number)
        time.sleep(0.3)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    wait_until(lambda: not process.pids(), 30)
    return err


def mlflow_states(storage: Path) -> set[str]:
    client = MlflowClient(f"sqlite:///{storage / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("learnable_bucketing")
    assert experiment is not None
    return {
        run.info.status for run in client.search_runs([experiment.experiment_id], max_results=1000)
    }


@pytest.mark.parametrize(
    "signals", [[signal.SIGINT] * 2, [signal.SIGTERM]], ids=["ctrl_c_twice", "sigterm"]
)
@pytest.mark.parametrize("seconds", [2, 4, 6])
def test_run_stopped_while_ray_starts_ends_with_it(
    seconds: float, signals: list[signal.Signals], tmp_path: Path
) -> None:
    process = Command("run", "learnable_bucketing", f"--storage={tmp_path}")
    time.sleep(seconds)
    for number in signals:
        os.killpg(process.pid, number)
        time.sleep(0.3)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    saved = (tmp_path / "studies" / "learnable_bucketing").exists()
    # On a busy machine the signal comes before the imports are done.
    early = seconds == 2 and err == "interrupted\n"
    assert early or err.startswith(
        f"interrupted; {'state saved' if saved else 'nothing to save yet'}. "
        "Resume with: hylorada run"
    ), err
    assert "Traceback" not in err
    wait_until(lambda: not process.pids(), 20)


def test_uninterrupted_holds_signals_back_and_its_children_out_of_reach() -> None:
    program = """
        import os, signal, subprocess, sys

        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        from studies.process.signals import interrupt, on_end, uninterrupted

        def nothing():
            pass  # Ray sets such a function for each of its processes

        code = "import os, signal; print(os.getpgrp() == os.getpid(), "
        code += "signal.pthread_sigmask(signal.SIG_BLOCK, []))"
        arguments = dict(args=[sys.executable, "-c", code], preexec_fn=nothing)
        on_end(interrupt)
        try:
            with uninterrupted():
                # Ray does this below Python's own handlers.
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
                subprocess.run(**arguments)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            subprocess.run(**arguments)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "True set()\nFalse set()\n"), done.stderr


def test_run_ends_with_its_terminal(toy_model: str, tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "learnable_bucketing"
    terminal, other = pty.openpty()
    os.set_blocking(terminal, False)
    shown = bytearray()

    def some_have_ended() -> bool:
        with suppress(BlockingIOError):
            shown.extend(os.read(terminal, 1 << 16))
        return len(ended(folder)) >= 2

    process = Command(*command(toy_model, tmp_path), terminal=other)
    os.close(other)
    wait_until(some_have_ended, 300)
    assert b"4 trials for each of" in shown
    os.close(terminal)
    assert process.wait(30) == 130
    wait_until(lambda: not process.pids(), 30)
    assert "RUNNING" not in mlflow_states(tmp_path)


def test_ray_starts_to_its_end_whichever_thread_takes_the_signal() -> None:
    program = """
        import os, signal, threading, time
        from studies.process.environment import make_private, prepare_environment, short_folder

        prepare_environment()
        folder = short_folder()
        make_private(folder)
        import ray
        from studies.engine.ray_start import start_ray, stop_ray
        from studies.process.signals import interrupt, on_end

        def ask():
            time.sleep(1.5)
            os.kill(os.getpid(), signal.SIGTERM)

        on_end(interrupt)
        threading.Thread(target=ask).start()
        try:
            start_ray(None, folder)
        except KeyboardInterrupt:
            print(ray.is_initialized())
        stop_ray()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_devices_end_whenever_they_are_told(tmp_path: Path) -> None:
    program = f"""
        from pathlib import Path
        from studies import learnable_bucketing
        from studies.search.devices import Devices
        from studies.process.environment import make_private, prepare_environment, short_folder
        from studies.process.options import Options
        from studies.spec.study import Study

        prepare_environment()
        folder = short_folder()
        make_private(folder)
        study = Study.from_dict(learnable_bucketing.STUDY)
        devices = Devices(study, Options(storage=Path({str(tmp_path)!r})), folder)
        devices.close()
        for _ in range(2):
            devices.start()
            devices.close()  # while it starts
            devices.close()
        import ray
        print(ray.is_initialized())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_run_stopped_saves_and_prints_how_to_go_on(toy_model: str, tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "learnable_bucketing"
    line = command(toy_model, tmp_path)
    err = stop(Command(*line), folder, 2, [signal.SIGTERM])
    assert (
        f"hylorada {shlex.join(line)}" == err.strip().splitlines()[-1].partition("Resume with: ")[2]
    )
    assert "RUNNING" not in mlflow_states(tmp_path)
    stop(Command(*line), folder, 4, [signal.SIGINT])
    stop(Command(*line), folder, 6, [signal.SIGINT] * 3)  # by someone who does not wait
    assert "RUNNING" not in mlflow_states(tmp_path)
    again = run_cli(*line, timeout=400)
    assert again.code == 0, again.err
    actual = outcome(tmp_path, "learnable_bucketing")
    assert Counter(t["stage"] for t in actual.trials.values()) == {"search": 12, "confirm": 6}
    assert {t["state"] for t in actual.trials.values()} <= {"complete", "pruned"}
    titles = [f"learnable_bucketing / {arm} / search 0" for arm in ARMS]
    assert {t: len(trials) for t, trials in actual.optuna.items()} == dict.fromkeys(titles, 4)
    assert actual.mlflow.keys() == {"learnable_bucketing", *actual.trials}
    assert "RUNNING" not in {status for status, _ in actual.mlflow.values()}
