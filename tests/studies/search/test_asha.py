"""ASHA against its definition: a trial stops if it is worse than the best 1/eta before it."""

import numpy as np
import pytest

from studies.search.asha import Asha

_EVERY, _MAX = 2, 36


class _Reference:
    """The definition for one arm, with the losses of each rung in the order of arrival."""

    def __init__(self, grace: int, eta: int) -> None:
        self._eta = eta
        self._rungs: dict[int, list[float]] = {}
        while grace < _MAX:
            self._rungs[grace] = []
            grace *= eta

    def stops(self, step: int, nll: float) -> bool:
        if step not in self._rungs:
            return False
        before = sorted(self._rungs[step])
        self._rungs[step].append(nll)
        if not before:
            return False
        place = (len(before) - 1) / self._eta  # of the best 1/eta quantile, between two losses
        low, share = int(place), place % 1
        cutoff = before[low] + share * (before[min(low + 1, len(before) - 1)] - before[low])
        return nll > cutoff


def _asha(arms: tuple[str, ...] = ("a", "b"), grace: int = 4, eta: int = 2) -> Asha:
    return Asha(arms, grace_steps=grace, reduction_factor=eta, max_steps=_MAX)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("eta", [2, 3])
def test_decisions_are_those_of_the_definition(eta: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    asha, references = _asha(eta=eta), {arm: _Reference(4, eta) for arm in ("a", "b")}
    going = {f"{arm}-{i}": 0 for arm in references for i in range(20)}
    stopped = 0
    while going:
        name = str(rng.choice(sorted(going)))
        going[name] += _EVERY
        nll = float(rng.normal())
        decision = asha.stops(name[0], name, going[name], nll)
        assert decision == references[name[0]].stops(going[name], nll)
        stopped += decision
        if decision or going[name] + _EVERY >= _MAX:
            del going[name]
    assert 10 < stopped < 40


def test_reports_between_rungs_never_stop() -> None:
    asha = _asha()
    for step in range(2, 36, 2):
        good, bad = (1.0, 1.0) if step in (4, 8, 16, 32) else (1.0, 99.0)
        assert not asha.stops("a", "good", step, good)
        assert not asha.stops("a", "bad", step, bad)


def test_arms_are_judged_apart() -> None:
    asha = _asha()
    assert not any(asha.stops("a", f"a-{i}", 4, 1.0) for i in range(5))
    assert not asha.stops("b", "b-0", 4, 99.0)
    assert asha.stops("a", "a-5", 4, 1.1)


def test_told_twice_counts_once() -> None:
    once, twice = _asha(), _asha()
    for i, nll in enumerate([3.0, 1.0, 2.0]):
        once.stops("a", f"a-{i}", 4, nll)
        for _ in range(5):
            twice.stops("a", f"a-{i}", 4, nll)
    assert not twice.stops("a", "a-0", 4, 3.0)
    for nll in (1.4, 1.6):  # the median so far is 2.0; if repeats counted it would be another
        assert once.stops("a", f"new-{nll}", 4, nll) == twice.stops("a", f"new-{nll}", 4, nll)


@pytest.mark.parametrize("seed", range(10))
def test_rebuilt_in_another_order_it_decides_the_same_next(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reports = [
        (f"a-{i}", step, float(rng.normal()))
        for i in range(9)
        for step in (4, 8, 16)[: rng.integers(1, 4)]
    ]
    # The steps of each trial stay in order.
    shuffled = sorted(reports, key=lambda r: (r[1], rng.random()))
    first, second = _asha(), _asha()
    for asha, order in ((first, reports), (second, shuffled)):
        for name, step, nll in order:
            asha.stops("a", name, step, nll)
    news = [(f"new-{i}", step, float(rng.normal())) for i in range(9) for step in (4, 8, 16)]
    decisions = [first.stops("a", *new) for new in news]
    assert decisions == [second.stops("a", *new) for new in news]
    assert True in decisions
    assert False in decisions
