"""The trial: what Ray Tune schedules. It imports no torch and costs no more than a message to its host."""

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
from studies.trials.messages import Report


class Trial(tune.Trainable):
    """Holds a place in Tune for one job; every step is one report of the host's.

    Nothing is claimed at set-up: Tune may start a process for a trial and then give the trial to another.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """What a trial asks for."""
        return _request(config["cpu"], config["gpu"])

    def setup(self, config: dict[str, Any]) -> None:
        self._registry = ray.get_actor(config["registry"])
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        self._job: dict[str, Any] = json.loads(config["job"])
        self._seen: int = config["seen"]  # the last step that the driver knows
        self._token = ""
        self._host: Any = None
        self._host_id: str | None = None
        self._lost: str | None = None  # the id of a host that was found dead
        self._alone = False  # whether it may be what costs hosts their devices

    def step(self) -> dict[str, Any]:
        """Go on to the next report; a host that died is replaced and the trial goes on from its checkpoint.

        What goes wrong is told, not raised: Tune would count a machine that is gone as a failure of the trial.
        """
        deaths = losses = 0
        while True:
            try:
                report = self._next_report()
            except ray.exceptions.ActorUnavailableError:
                time.sleep(
                    1
                )  # out of reach for a moment; taking it for dead would make a second host
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
                raise  # nobody listens to this process any more
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
                return {
                    "report": report.to_json(),
                    "done": report.done,
                }  # as text: Tune flattens results

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
        """Free the seat."""
        if self._token:
            token, self._token = self._token, ""
            with suppress(
                ray.exceptions.RayError, TimeoutError
            ):  # a host that is gone holds no seat
                ray.get(self._host.detach.remote(self._job["name"], token), timeout=10)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the host has saved the seat beside the report."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: the host restores the seat when the trial takes it."""


@cache  # Tune keeps every trial's: with one each, as ``tune.with_resources`` makes, the driver grows by 5 KiB a trial
def _request(cpu: float, gpu: float) -> tune.PlacementGroupFactory:
    return tune.PlacementGroupFactory([{"CPU": cpu, "GPU": gpu}])


def _described(error: Exception) -> str:
    """An exception of the host's as JSON: in a line, and in full."""
    cause = own(error)
    lines = str(cause).strip().splitlines() or [""]
    reason = f"{type(cause).__name__}: {lines[0]}"
    return json.dumps({"reason": reason, "traceback": uncoloured(str(error))})
