"""The devices that a study trains on, with Ray started or joined when first needed."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.files.own_designs import own_designs
from studies.files.paths import anywhere
from studies.spec.study import Study

if TYPE_CHECKING:
    from studies.engine.cluster import Cluster
    from studies.engine.nodes import Gate
    from studies.process.options import Options


class Devices:
    """The devices of a study; Ray starts on first use, so a finished study is reported without it.

    Args:
        study: the study to train.
        options: where to run.
        workspace: a folder with a short path for Ray's files.
    """

    def __init__(self, study: Study, options: "Options", workspace: Path) -> None:
        self._study, self._options, self._workspace = study, options, workspace
        # Nodes have other working folders.
        self._model = anywhere(study.model, folder=True)
        self._joined = False
        self._cluster: Cluster | None = None
        self._has_text = False

    def start(self) -> None:
        """Start Ray now, so that its first host runs its imports beside this process."""
        if self._cluster is None:
            self._cluster = self._make()

    def join(self) -> None:
        """Join the cluster, and check that trials can run on its nodes.

        Raises:
            InputError: no node can run trials, or a node fails the check.
        """
        from studies.engine.cluster import admit
        from studies.engine.ray_start import start_ray

        start_ray(self._options.address, self._workspace)
        self._joined = True
        admit(self._gate, self._options.wait)

    def cluster(self, blocks: Mapping[str, Any]) -> "Cluster":
        """Return the cluster, started if necessary, after giving the text to its hosts once.

        Args:
            blocks: the tokenised text, the same in every call.
        """
        self.start()
        assert self._cluster is not None
        if not self._has_text:
            self._cluster.give(blocks)
            self._has_text = True
        return self._cluster

    def close(self) -> None:
        """Stop Ray or leave the cluster, once; further calls do nothing.

        The calling program's own Ray keeps running, without our hosts.
        """
        if self._joined:
            from studies.engine.ray_start import stop_ray

            if self._cluster is not None:
                self._cluster.leave()
            stop_ray(self._options.address)
            self._cluster, self._joined, self._has_text = None, False, False

    @cached_property
    def _gate(self) -> "Gate":
        from studies.engine.nodes import Gate

        place = self._options.storage, self._options.study_folder(self._study.name)
        if Path(self._model).is_absolute():
            return Gate(*place, needs=[self._model])
        from hylorada import inspect_base

        return Gate(*place, base=(self._model, inspect_base(self._model).fingerprint))

    def _make(self) -> "Cluster":
        from hylorada import TrainingConfig
        from studies.engine.cluster import Cluster

        options, study = self._options, self._study
        own = {"designs": designs} if (designs := own_designs(study.to_dict())) else {}
        self._joined = True  # from here on Ray is imported and may have to be stopped
        return Cluster(
            workspace=self._workspace,
            address=options.address,
            seats=options.seats,
            batch_size=study.defaults.get("batch_size", TrainingConfig().batch_size),
            engine={
                "model": self._model,
                "dtype": study.dtype,
                "gradient_checkpointing": study.gradient_checkpointing,
                "device_map": study.device_map,
                **own,
            },
            gate=self._gate if options.address else None,
        )
