"""What a study trains on: Ray, started or joined when it is first needed."""

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._environment import uninterrupted
from ._study import Study

if TYPE_CHECKING:
    from ._cluster import Cluster
    from ._inputs import Material
    from ._nodes import Gate
    from ._options import Options

_START_S = 20.0  # longest wait for a start under way, when it is to end


class Devices:
    """Ray, started when it is first needed: a finished study is reported again without it."""

    material: "Material"

    def __init__(self, study: Study, options: "Options", workspace: Path) -> None:
        self._study, self._options, self._workspace = study, options, workspace
        self._model = _anywhere(study.model)
        self._joined = False
        self._starting: Future[Cluster] | None = None
        self._ended = threading.Event()

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self.material.provenance

    def start(self) -> None:
        """Start it in the background, rather than when it is first asked for something."""
        if self._starting is None:
            self._starting, self._ended = Future(), threading.Event()
            # one that the end of the process doesn't wait for: it may be asked to end while this is under way
            threading.Thread(target=self._begin, args=(self._starting, self._ended), daemon=True).start()

    def _begin(self, starting: "Future[Cluster]", ended: threading.Event) -> None:
        try:
            starting.set_result(self._make())
        except BaseException as error:
            starting.set_exception(error)
        ended.wait()  # Ray's processes end with the thread that started them

    def wait(self) -> None:
        """Wait until it runs, and give its hosts the text."""
        _ = self.cluster

    def join(self) -> None:
        """Join the cluster, and see that trials can run on its nodes.

        Raises:
            InputError: they can't.
        """
        from ._cluster import admit, start_ray

        start_ray(self._options.address, self._workspace)
        self._joined = True
        admit(self._gate, self._options.wait)

    def close(self) -> None:
        """End Ray, or leave the cluster; told twice, once."""
        if self._starting is not None or self._joined:
            from ._cluster import stop_ray

            with uninterrupted():  # processes of a Ray that is still starting would outlive this one by a minute
                if self._starting is not None:
                    wait([self._starting], timeout=_START_S)
                stop_ray()
                self._starting, self._joined = None, False
                self.__dict__.pop("cluster", None)
                self._ended.set()

    @cached_property
    def _gate(self) -> "Gate":
        from ._nodes import Gate

        needs = [self._model] if Path(self._model).is_absolute() else []
        return Gate(self._options.storage, self._options.study_folder(self._study.name), needs)

    @cached_property
    def cluster(self) -> "Cluster":
        self.start()
        assert self._starting is not None
        cluster = self._starting.result()
        cluster.give(self.material.blocks)
        return cluster

    def _make(self) -> "Cluster":
        from hylorada import TrainingConfig

        from ._cluster import Cluster

        options, study = self._options, self._study
        return Cluster(
            workspace=self._workspace,
            address=options.address,
            seats=options.seats,
            batch_size=study.defaults.get("batch_size", TrainingConfig().batch_size),
            engine={"model": self._model, "dtype": study.dtype},
            gate=self._gate if options.address else None,
        )


def _anywhere(model: str) -> str:
    """A base's name as every node understands it: nodes have working directories of their own."""
    from hylorada._names import SMOLLM2, TINY

    folder = Path(os.path.expanduser(model))  # leaves a user who is not known alone
    return str(folder.absolute()) if model not in (TINY, SMOLLM2) and os.path.isdir(folder) else model
