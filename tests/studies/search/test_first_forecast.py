"""The line near the start of a run that says what it takes."""

import re

from study_runs import FinishedStudy


def test_run_says_what_it_takes_after_its_first_report(finished: FinishedStudy) -> None:
    lines = finished.done.err.splitlines()
    (line,) = [i for i, text in enumerate(lines) if text.startswith("été 1: about ")]
    # 3 arms: 4 trials each, and 2 confirm runs; a trial may end before another's second report
    place = r"on \d+ CPU cores?"
    form = rf"été 1: about \d+ (s|min)( {place}: 18 trials| more {place}: \d+ of 18 trials left), "
    form += r"\d\.\d GiB memory, \d+ MB disk"
    assert re.fullmatch(form, lines[line])
    assert lines[line - 2].startswith("été 1: 4 trials for each of baseline, fixed, learnable")
    assert lines[line - 1] == "été 1: checking 3 arms on the base before training"
    assert line < next(i for i, text in enumerate(lines) if text.startswith("confirm: "))
