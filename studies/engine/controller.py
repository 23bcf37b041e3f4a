"""Tune's control loop, in which the process of a trial that ends serves the next one, however many end at once."""

import importlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.utils.object_cache import _ObjectCache


class _Kept(_ObjectCache):
    """Idle processes: all are kept until Tune asks for none."""

    def cache_object(self, key: Any, obj: Any) -> bool:
        self._cached_objects[key].append(obj)
        self._num_cached_objects += 1
        return True

    def flush_cached_objects(self, force_all: bool = False) -> Generator[Any, None, None]:
        if force_all:
            yield from super().flush_cached_objects(force_all=True)


class Controller(TuneController):
    """Tune's own controller but for what becomes of idle processes.

    Tune's keeps one of them where no trial waits, and hands it also to a trial whose own process is starting, which is
    then ended. Where trials end faster than processes start, every end so calls off the start before it, and a seat
    stays empty for good: 7 of 8 were seen at work. Here a process that starts is let start, and all are kept.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._actor_cache = _Kept()
        judge: Any = self._scheduler_alg
        judge.resetting = self._resetting_trials

    def _maybe_reuse_cached_actor(self, trial: Trial) -> bool:
        own = self._trial_to_actor.get(trial)
        if (
            own is not None
            and trial not in self._resetting_trials
            and self._actor_manager.is_actor_started(own)
        ):
            return False  # it has its resources, and is about to run
        return bool(super()._maybe_reuse_cached_actor(trial))


@contextmanager
def controlled() -> Iterator[None]:
    """Within it ``Tuner.fit`` runs with :class:`Controller`, which Tune has no option for."""
    tune = importlib.import_module("ray.tune.tune")  # `ray.tune` has a function of this name too
    before, tune.TuneController = tune.TuneController, Controller  # type: ignore[attr-defined]
    try:
        yield
    finally:
        tune.TuneController = before  # type: ignore[attr-defined]
