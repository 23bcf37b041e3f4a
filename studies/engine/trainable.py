"""The trainable that Ray Tune schedules: it imports no torch and only calls its host."""

import json
import time
import uuid
from contextlib import suppress
from functools import cache
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayTaskError

from studies.process.errors import (
    HOST_TRIES,
    DeviceLost,
    HostGone,
    SeatLost,
    Superseded,
    as_stop,
    host_died,
    own,
    uncoloured,
)
from studies.process.phases import phase
from studies.trials.messages import Report


class Trial(tune.Trainable):
    """A Tune trainable for one job: every step fetches one report from the host.

    The seat is not taken in ``setup``: Tune may start a process for a trial and then give the trial
    to another process.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """Return the resources that the config requests."""
        return _request(config["cpu"], config["gpu"])

    @phase("trial: setup")
    def setup(self, config: dict[str, Any]) -> None:
        """Prepare for the config's job, without taking a seat."""
        self._registry = ray.get_actor(config["registry"])
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Release the seat, and prepare for another job in the same process."""
        self.cleanup()
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        self._job: dict[str, Any] = json.loads(config["job"])
        self._seen: int = config["seen"]  # the last step that the driver knows
        self._token = ""
        self._host: Any = None
        self._host_id: str | None = None
        self._lost: str | None = None  # the id of a host that has died
        self._alone = False  # whether this trial may be the one that makes hosts lose their devices

    def step(self) -> dict[str, Any]:
        """Train to the next report; if the host dies, continue from the checkpoint on a new host.

        Faults are returned, not raised: Tune would count a lost machine as a failure of the trial.
        """
        deaths = losses = 0
        while True:
            try:
                report = self._next_report()
            except ray.exceptions.ActorUnavailableError:
                # The host is briefly unreachable. Treating it as dead would create a second one.
                time.sleep(1)
                self._token = ""
            except ray.exceptions.RayActorError as error:
                self._lost, self._token, deaths = self._host_id, "", deaths + 1
                if deaths == HOST_TRIES:
                    return {"stopped": host_died(error), "done": True}
            except HostGone:
                self._lost, self._token = self._host_id, ""
            except SeatLost:
                self._token = ""
            except Superseded:
                raise  # Tune ignores this process from now on
            except DeviceLost as error:
                self._lost, self._token, self._alone, losses = self._host_id, "", True, losses + 1
                if losses == HOST_TRIES:
                    return {"failed": _described(error), "done": True}
            except RayTaskError as error:
                if stop := as_stop(error):
                    return {"stopped": str(stop), "done": True}
                return {"failed": _described(error), "done": True}
            else:
                self._seen, self._alone = report.step, False
                # As text, because Tune flattens nested results.
                return {"report": report.to_json(), "done": report.done}

    def _next_report(self) -> Report:
        if not self._token:
            stored = self._take_seat()
            if stored is not None:
                return stored
        report: Report = ray.get(self._host.advance.remote(self._job["name"], self._token))
        return report

    def _take_seat(self) -> Report | None:
        gpus = ray.get_gpu_ids()
        node = ray.get_runtime_context().get_node_id()
        device = str(gpus[0]) if gpus else ""
        self._host, self._host_id = ray.get(self._registry.host.remote(node, device, self._lost))
        token = uuid.uuid4().hex
        stored: Report | None = ray.get(
            self._host.attach.remote(self._job, token, self._seen, self._alone)
        )
        self._token = token
        return stored

    def cleanup(self) -> None:
        """Release the seat."""
        if self._token:
            token, self._token = self._token, ""
            # A host that is gone holds no seat.
            with suppress(ray.exceptions.RayError, TimeoutError):
                ray.get(self._host.detach.remote(self._job["name"], token), timeout=10)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Do nothing: the host has saved the seat with the report."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Do nothing: the host restores the seat when the trial attaches."""


# Cached because Tune keeps every trial's request: with a new object for each, as from
# `tune.with_resources`, the driver grows by 5 KiB per trial.
@cache
def _request(cpu: float, gpu: float) -> tune.PlacementGroupFactory:
    return tune.PlacementGroupFactory([{"CPU": cpu, "GPU": gpu}])


def _described(error: Exception) -> str:
    """Return an exception raised on the host as JSON with a ``reason`` and a ``traceback``."""
    cause = own(error)
    lines = str(cause).strip().splitlines() or [""]
    reason = f"{type(cause).__name__}: {lines[0]}"
    return json.dumps({"reason": reason, "traceback": uncoloured(str(error))})
