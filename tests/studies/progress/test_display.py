"""Progress off a terminal, in a notebook, and nowhere."""

import io
import re
from pathlib import Path

import pytest
from made_studies import VALUES, report
from rich.console import Console

from studies.process.options import Progress
from studies.progress import display
from studies.progress.display import Display, NotebookDisplay, PlainDisplay, open_display
from studies.progress.panel import Panel
from studies.spec.study import Study
from studies.trials.store import Store


class Clock:
    """A clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path, Study.from_dict(VALUES))
    for arm, state in (("fixed", "complete"), ("baseline", None)):
        record = store.propose(arm)
        store.report(record.name, report(record, 8 if state else 2))
        if state:
            store.finish(record.name, "complete")
    return store


def test_plain_progress_is_a_line_a_minute(store: Store, clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=200)
    with Panel(store, console) as panel:
        panel.begin("search", 12)
        for now in (1010, 1059, 1060, 1100, 1119, 1121):
            clock.now = now
            panel.update()
    store.close()
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "made: search: 1 of 12 trials, 60 s",
        "made: search: 1 of 12 trials, 121 s",
    ]
    fixed = store.records["fixed-0000"].reports[-1].metrics["eval/ppl"]
    baseline = store.records["baseline-0000"].reports[-1].metrics["eval/ppl"]
    assert lines[0].endswith(f"; best PPL: fixed {fixed:.3f}, baseline {baseline:.3f}")


def test_time_left_follows_the_pace_of_the_steps(tmp_path: Path, clock: Clock) -> None:
    store = Store(tmp_path, Study.from_dict({**VALUES, "pruner": "none"}))
    first, second = store.propose("fixed"), store.propose("baseline")
    store.report(first.name, report(first, 2))
    console = Console(file=io.StringIO(), width=200)
    with Panel(store, console) as panel:
        panel.begin("search", 12)
        store.report(first.name, report(first, 8))
        store.finish(first.name, "complete")
        store.report(second.name, report(second, 4))
        clock.now += 60
        panel.update()
    store.close()
    assert isinstance(console.file, io.StringIO)
    # 6 and 4 steps in a minute; 4 of the running trial and 8 of each of ten others are left
    assert "1 of 12 trials, 60 s, about 8 min left" in console.file.getvalue()


def test_no_progress_shows_only_what_is_said(store: Store, clock: Clock) -> None:
    console = Console(file=io.StringIO())
    with Panel(store, console, "none") as panel:
        panel.begin("search", 12)
        clock.now += 600
        panel.update()
        panel.say("a line")
    store.close()
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "a line\n"


@pytest.mark.parametrize(("progress", "name"), [("live", ""), ("plain", "made: ")])
def test_lines_on_a_study_name_it_where_no_panel_does(
    store: Store, clock: Clock, progress: Progress, name: str
) -> None:
    page = io.StringIO()
    console = Console(file=page, width=200, force_terminal=progress == "live")
    with Panel(store, console, progress) as panel:
        panel.tell("about 2 min")
        panel.begin_check(1)
        clock.now += 5
        assert panel.title() == "made: checking 1 arm on the base before training"
        (count,) = panel.content().renderables
        assert str(count) == "5 s"
    store.close()
    shown = re.sub(r"\x1b\[\S*?[a-zA-Z]", "", page.getvalue())  # the panel's control sequences
    assert [line for line in shown.splitlines() if "min" in line] == [f"{name}about 2 min"]
    assert f"{name}checking 1 arm on the base before training" in shown.splitlines()


def test_notebook_replaces_one_output(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, str]] = []

    class Handle:
        def update(self, data: dict[str, str], **_: bool) -> None:
            sent.append(("update", data["text/plain"]))

    def show(data: dict[str, str], **_: bool) -> Handle:
        sent.append(("display", data["text/plain"]))
        return Handle()

    monkeypatch.setattr("IPython.display.display", show)
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    with Panel(store, Console(file=io.StringIO())) as panel:
        panel.begin("search", 12)
        panel.update()  # too early
        clock.now += 1
        panel.update()
    store.close()
    assert [kind for kind, _ in sent] == ["display", "update"]
    assert re.search(r"made: search .*1 of 12 trials, 1 s", sent[1][1], re.DOTALL)


@pytest.mark.parametrize(
    ("progress", "terminal", "kind"),
    [
        ("auto", False, PlainDisplay),
        ("live", False, Display),
        ("plain", True, PlainDisplay),
        ("none", True, Display),
    ],
)
def test_display_follows_option_and_console(
    progress: str, terminal: bool, kind: type[Display]
) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal)
    assert type(open_display(console, progress)) is kind  # type: ignore[arg-type]


def test_display_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    assert type(open_display(Console(file=io.StringIO()))) is NotebookDisplay
