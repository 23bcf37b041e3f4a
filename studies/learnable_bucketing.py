"""Does learning where the position buckets lie help? Three arms: no landmarks, fixed buckets, learnable boundaries."""

from typing import Any

DESCRIPTION = "fixed against learned bucket boundaries of position-adaptive landmarks"

_LANDMARKS = {"choice": [4, 8, 16]}
_BUCKETS = {"choice": [8, 16, 32]}
_WEIGHTS = {"choice": [0.0, 0.001, 0.01, 0.1]}

STUDY: dict[str, Any] = {
    "definition": "learnable_bucketing",
    "name": "learnable_bucketing",
    "subject": "Learning the boundaries",
    "model": "tiny",
    "data": "pydocs",
    "text_column": None,
    "document_separator": "auto",
    "block_size": 128,
    "dtype": "float32",
    "trials": 4,
    "eval_every": 8,
    "eval_blocks": 12,
    "test_blocks": 100,
    "grace_steps": 8,
    "reduction_factor": 2,
    # One draw serves a trial of every arm: paired seeds cancel noise only between runs of equal learning rate. Above
    # 4e-3 the built-in base nears the edge of stability: at 8e-3 seeds differ ten times as much.
    "common": {"space": {"learning_rate": {"low": 5e-4, "high": 4e-3, "log": True}}},
    "matched": True,
    "searches": 5,
    "finalists": 1,
    "selection_seeds": 1,
    "profile": [0.5, 1.0, 2.0],
    "seeds": 1,
    "seed": 0,
    "margin": 0.5,
    "looks": [],
    "spread_test": True,
    "defaults": {
        "r": 8,
        "lora_alpha": 16.0,
        "position_bias": True,
        "max_steps": 32,
        "batch_size": 2,
    },
    "arms": {
        "baseline": {
            "config": {"landmarks": False},
            "space": {},
        },
        # the bucket count is searched here too: else the learnable arm could win by its bucket count alone
        "fixed": {
            "config": {"landmark_bucketing": "fixed"},
            "space": {
                "num_landmarks": _LANDMARKS,
                "num_buckets": _BUCKETS,
                "bucket_spacing": {"choice": ["log", "linear"]},
            },
        },
        "learnable": {
            "config": {"landmark_bucketing": "learnable"},
            "space": {
                "num_landmarks": _LANDMARKS,
                "num_buckets": _BUCKETS,
                "temperature": {"low": 1e-3, "high": 1e-1, "log": True},
                "boundary_lr_scale": {"low": 0.1, "high": 30.0, "log": True},
                "boundary_init": {"choice": ["log", "uniform", "random", "fixed"]},
                "boundary_warmup": {"low": 0.1, "high": 0.7, "when": {"boundary_init": "fixed"}},
                "boundary_diversity": _WEIGHTS,
                "boundary_repulsion": _WEIGHTS,
            },
        },
    },
    "comparisons": [["learnable", "fixed"], ["learnable", "baseline"], ["fixed", "baseline"]],
}
