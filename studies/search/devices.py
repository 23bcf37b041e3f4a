"""The devices that a study trains on, with Ray started or joined when first needed."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.files.paths import anywhere
from studies.spec.study import Study

if TYPE_CHECKING:
    from studies.engine.cluster import Cluster
    from studies.engine.nodes import Gate
    from studies.process.options import Options
    from studies.runner.inputs import Material


class Devices:
    """Ray, started when it is first needed: a finished study is reported again without it."""

    material: "Material"

    def __init__(self, study: Study, options: "Options", workspace: Path) -> None:
        self._study, self._options, self._workspace = study, options, workspace
        self._model = anywhere(study.model, folder=True)  # nodes have working folders of their own
        self._joined = False
        self._cluster: Cluster | None = None

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self.material.provenance

    def start(self) -> None:
        """Start it now: its first host imports what it needs while this process goes on."""
        if self._cluster is None:
            self._cluster = self._make()

    def wait(self) -> None:
        """Wait until it runs, and give its hosts the text."""
        _ = self.cluster

    def join(self) -> None:
        """Join the cluster, and see that trials can run on its nodes.

        Raises:
            InputError: they can't.
        """
        from studies.engine.cluster import admit
        from studies.engine.ray_start import start_ray

        start_ray(self._options.address, self._workspace)
        self._joined = True
        admit(self._gate, self._options.wait)

    def close(self) -> None:
        """End Ray, or leave the cluster; told twice, once. The calling program's own Ray goes on without our hosts."""
        if self._joined:
            from studies.engine.ray_start import stop_ray

            if self._cluster is not None:
                self._cluster.leave()
            stop_ray(self._options.address)
            self._cluster, self._joined = None, False
            self.__dict__.pop("cluster", None)

    @cached_property
    def _gate(self) -> "Gate":
        from studies.engine.nodes import Gate

        place = self._options.storage, self._options.study_folder(self._study.name)
        if Path(self._model).is_absolute():
            return Gate(*place, needs=[self._model])
        from hylorada import inspect_base

        return Gate(*place, base=(self._model, inspect_base(self._model).fingerprint))

    @cached_property
    def cluster(self) -> "Cluster":
        self.start()
        assert self._cluster is not None
        self._cluster.give(self.material.blocks)
        return self._cluster

    def _make(self) -> "Cluster":
        from hylorada import TrainingConfig
        from studies.engine.cluster import Cluster

        options, study = self._options, self._study
        self._joined = True  # Ray is imported: from here on there is something to end
        return Cluster(
            workspace=self._workspace,
            address=options.address,
            seats=options.seats,
            batch_size=study.defaults.get("batch_size", TrainingConfig().batch_size),
            engine={"model": self._model, "dtype": study.dtype},
            gate=self._gate if options.address else None,
        )
