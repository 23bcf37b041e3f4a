import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import gated_run
from transformers import PreTrainedModel

from hylorada import Adapter, HyLoRADAConfig, SoftBucketLandmark
from studies.analysis.gates import read_gates
from studies.trials.messages import CHECKPOINT
from studies.trials.records import Record

T = 16


def trained(folder: Path, base: PreTrainedModel, **changes: Any) -> Record:
    """Return a confirm run whose adapter uses landmark 2 in bucket 0, all landmarks elsewhere."""
    values: dict[str, Any] = {"r": 2, "num_landmarks": 3, "num_buckets": 4, "max_positions": T}
    return gated_run(
        folder, base, HyLoRADAConfig(**values | changes), {(0, 2): math.log(2)}, [13.5, 7.5, 9.5]
    )


@pytest.mark.parametrize(
    ("changes", "starts"),
    [
        ({"landmark_bucketing": "learnable", "temperature": 1e-3}, (0, 8, 10, 14)),
        ({"bucket_spacing": "linear"}, (0, 4, 8, 12)),
    ],
)
def test_gates_of_a_trained_adapter(
    tmp_path: Path,
    make_base: Callable[[], PreTrainedModel],
    changes: dict[str, Any],
    starts: tuple[int, ...],
) -> None:
    found = read_gates(tmp_path, trained(tmp_path, make_base(), **changes))
    assert found is not None
    assert found.starts == starts
    expected = np.full((T, 3), 1 / 3)
    expected[: starts[1]] = [0.25, 0.25, 0.5]  # softmax of 0, 0, log 2
    np.testing.assert_allclose(found.weights, expected, rtol=1e-5)


def test_gates_of_soft_random_boundaries_are_those_of_the_run(
    tmp_path: Path, make_base: Callable[[], PreTrainedModel]
) -> None:
    soft = {"landmark_bucketing": "soft", "boundary_init": "random", "temperature": 1e-4}
    run = trained(tmp_path, make_base(), **soft)
    run.seed = 0  # that of the adapter
    config = HyLoRADAConfig.from_dict(run.adapter)
    landmark = Adapter(make_base(), config, seed=0).landmark
    assert isinstance(landmark, SoftBucketLandmark)
    found = read_gates(tmp_path, run)
    assert found is not None
    edges = np.ceil(landmark.boundary_positions().numpy())
    assert found.starts == (0, *(int(e) for e in edges if 0 < e < T))


@pytest.mark.parametrize("content", [None, b"", b"damaged" * 40])
def test_adapter_that_is_gone_or_damaged_has_no_gates(
    tmp_path: Path, make_base: Callable[[], PreTrainedModel], content: bytes | None
) -> None:
    run = trained(tmp_path, make_base())
    path = tmp_path / "trials" / run.name / CHECKPOINT
    path.unlink() if content is None else path.write_bytes(content)
    assert read_gates(tmp_path, run) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"landmark_design": "global"},
        {"landmarks": False},
        {"num_buckets": 1},
        {"of_no_version": 1},
    ],
)
def test_adapter_whose_gates_do_not_look_at_positions_has_none(
    tmp_path: Path, make_base: Callable[[], PreTrainedModel], changes: dict[str, Any]
) -> None:
    run = trained(tmp_path, make_base())
    run.adapter = {**run.adapter, **changes}
    assert read_gates(tmp_path, run) is None
