"""The cells of a comparison over studies: finished studies, read from their folders."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hylorada import InputError
from studies.analysis.results import Results, read_results
from studies.files.folder_files import stored_study, study_command
from studies.spec.study import Study
from studies.trials.loading import load_records
from studies.trials.records import Record, check_kinds


@dataclass(frozen=True)
class FinishedCell:
    """A finished study that is one cell of a grid, or one of several studies to compare.

    Attributes:
        label: What sets it apart from the other cells, such as "block_size 128".
        folder: Folder of the study.
        study: The study.
        results: Its results.
        records: Its trials and runs, by name.
    """

    label: str
    folder: Path
    study: Study
    results: Results
    records: Mapping[str, Record]

    def fingerprint(self, of: str) -> str:
        """Return the fingerprint of its text ("data"), base ("model") or test blocks ("test")."""
        unknown = f"unknown, of {self.folder}"  # equal to no other
        return str(self.results.provenance.get(f"{of}_fingerprint", unknown))


def read_cell(folder: Path, label: str) -> FinishedCell:
    """Read a finished study.

    Args:
        folder: Folder of the study.
        label: Label of the cell.

    Raises:
        InputError: The study has no results yet, those of an earlier version, or damaged files.
    """
    check_kinds(folder)
    name = folder.name
    if not (folder / "results.json").exists():
        raise InputError(
            f"study {name!r} has not finished; run it to its end: `{study_command(folder)}`"
        )
    results = read_results(folder / "results.json")
    if any(c.error is None for c in results.comparisons):
        raise InputError(
            f"study {name!r} has results of an earlier version, without standard errors; "
            f"`{study_command(folder)}` computes them from its runs and trains nothing"
        )
    study = Study.from_dict(stored_study(folder / "study.json"))
    return FinishedCell(label, folder, study, results, load_records(folder))
