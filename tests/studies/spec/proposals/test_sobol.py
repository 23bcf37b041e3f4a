"""Points of the Sobol sequence against SciPy's own sequence."""

import numpy as np
from scipy.stats import qmc

from studies.spec.proposals.sobol import SobolPoint

_NAMES = ("rate", "count", "log_count", "word")


def test_values_lie_where_scipys_points_do() -> None:
    points = qmc.Sobol(4, scramble=True, rng=7).random(16)
    for index, (a, b, c, d) in enumerate(points, start=1):
        point = SobolPoint(_NAMES, 7, index)
        assert point.suggest_float("rate", 1e-4, 1e-2, log=True) == 1e-4 * 100**a
        assert point.suggest_float("rate", -1.0, 3.0) == -1 + 4 * a
        assert point.suggest_int("count", 3, 6) == 3 + np.floor(4 * b)
        log_count = point.suggest_int("log_count", 1, 8, log=True)
        assert log_count == round(0.5 * 17**c)
        assert point.suggest_categorical("word", ("x", None, 3)) == ("x", None, 3)[int(3 * d)]
