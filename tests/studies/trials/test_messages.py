"""Reports that become objects when they are first used, against reports that always were."""

import pickle
from dataclasses import replace

import pytest

from studies.trials.messages import Report, Reports

_PLAIN = [
    Report(step=step, metrics={"eval/nll": 3 - step / 10}, applied={"r": 8}, boundaries=(1.0, step))
    for step in (2, 4, 6)
]


def _stored() -> Reports:
    reports = Reports()
    for report in _PLAIN:
        reports.add_line(report.to_json())
    return reports


def test_reports_of_lines_are_those_that_were_written() -> None:
    assert _stored() == _PLAIN
    plain, stored = list(_PLAIN), _stored()
    assert plain == stored
    assert _stored() != _PLAIN[:2]
    assert [r.step for r in _stored()] == [2, 4, 6]
    assert [r.step for r in reversed(_stored())] == [6, 4, 2]
    assert (_stored()[-1], _stored()[1:]) == (_PLAIN[-1], _PLAIN[1:])
    assert pickle.loads(pickle.dumps(_stored())) == _PLAIN


def test_reports_of_a_trial_share_what_is_equal() -> None:
    reports = _stored()
    last, first = reports[-1], reports[0]
    assert first.applied is last.applied
    assert first is reports[0]


def test_reports_are_appended_to_those_of_lines() -> None:
    reports = _stored()
    reports.append(replace(_PLAIN[-1], step=8))
    assert [r.step for r in reports] == [2, 4, 6, 8]
    assert len(reports) == 4


def test_line_that_holds_no_report_is_refused_when_it_is_used() -> None:
    reports = Reports()
    reports.add_line('{"step": "two"}')
    with pytest.raises(ValueError, match=r"^step can't be 'two'$"):
        reports[0]
