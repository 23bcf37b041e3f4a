"""What `hylorada status` says of the stages."""

from campaigns import MATCHED, Folder, train

from studies.analysis.progress import resume_command, stage_lines
from studies.search.campaign import Campaign, Search


def test_a_finished_study_has_ended_all_runs_of_all_stages(folder: Folder) -> None:
    """The baseline searches nothing itself, so its finalists are equal and need no selection."""
    ledger = folder.open(**MATCHED, finalists=2, profile=[0.5, 1.0])
    assert stage_lines(ledger.store.study, {})[1:] == [
        "select: 0 of 4 ended",
        "confirm: 0 of 8 ended",
    ]
    train(Campaign(ledger))
    lines = stage_lines(ledger.store.study, ledger.store.records)
    assert lines == ["search: 6 of 6 ended", "select: 2 of 2 ended", "confirm: 8 of 8 ended"]


def test_a_study_goes_on_with_run(folder: Folder) -> None:
    ledger = folder.open(**MATCHED)
    Search(ledger).next_job()
    assert (
        resume_command("try", ledger.store.records)
        == resume_command("try", {})
        == ["hylorada", "run", "try"]
    )
