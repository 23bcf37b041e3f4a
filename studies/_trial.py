"""The trial: what Ray Tune schedules. It imports no torch and costs no more than a message to its host."""

import json
import time
import uuid
from contextlib import suppress
from typing import Any

import ray
from ray import tune

from ._job import Report

_HOST_TRIES = 3


class Trial(tune.Trainable):
    """Holds a place in Tune for one job; every step is one report of the host's.

    Nothing is claimed at set-up: Tune may start a process for a trial and then give the trial to another.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self._registry = ray.get_actor(config["registry"])
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        self._job: dict[str, Any] = config["job"]
        self._seen: int = config["seen"]  # the last step that the driver knows
        self._token = ""
        self._host: Any = None
        self._host_id: str | None = None

    def step(self) -> dict[str, Any]:
        """Go on to the next report; a host that died is replaced and the trial goes on from its checkpoint."""
        lost: str | None = None
        cause: Exception | None = None
        for attempt in range(_HOST_TRIES):
            try:
                report = self._next_report(lost)
            except ray.exceptions.ActorUnavailableError:
                time.sleep(attempt + 1)  # out of reach for a moment; taking it for dead would make a second host
                self._token = ""
                continue
            except ray.exceptions.RayActorError as error:
                lost, self._token, cause = self._host_id, "", error
                continue
            self._seen = report.step
            return {"report": json.dumps(report.to_dict()), "done": report.done}  # as text: Tune flattens results
        why = str(cause).strip().splitlines()[-1:] if cause else ["it can't be reached"]
        raise RuntimeError(f"the host of this trial's device failed {_HOST_TRIES} times in a row: {why[0]}") from cause

    def _next_report(self, lost: str | None) -> Report:
        if not self._token:
            stored = self._take_seat(lost)
            if stored is not None:
                return stored
        report: Report = ray.get(self._host.advance.remote(self._job["name"], self._token))
        return report

    def _take_seat(self, lost: str | None) -> Report | None:
        gpus = ray.get_gpu_ids()
        node = ray.get_runtime_context().get_node_id()
        device = str(gpus[0]) if gpus else ""
        self._host, self._host_id = ray.get(self._registry.host.remote(node, device, lost))
        token = uuid.uuid4().hex
        stored: Report | None = ray.get(self._host.attach.remote(self._job, token, self._seen))
        self._token = token
        return stored

    def cleanup(self) -> None:
        """Free the seat."""
        if self._token:
            token, self._token = self._token, ""
            with suppress(ray.exceptions.RayError, TimeoutError):  # a host that is gone holds no seat
                ray.get(self._host.detach.remote(self._job["name"], token), timeout=10)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the host has saved the seat beside the report."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: the host restores the seat when the trial takes it."""
