"""The compared designs: LoRA alone, and LoRA with one addition."""

from collections.abc import Mapping
from typing import Any, get_args

from hylorada import HyLoRADAConfig
from hylorada.config import LandmarkDesign
from studies.bench.options import Setting

ALPHA = 16
LORA = "LoRA"
DESIGNS: Mapping[str, Mapping[str, Any]] = {  # by name: configuration fields added to LoRA's
    LORA: {},
    "position bias": {"position_bias": True},
    "DoRA": {"use_dora": True},
    "position_adaptive fixed": {"landmarks": True},
    "position_adaptive soft": {"landmarks": True, "landmark_bucketing": "soft"},
    "position_adaptive learnable": {"landmarks": True, "landmark_bucketing": "learnable"},
    **{
        design: {"landmarks": True, "landmark_design": design}
        for design in get_args(LandmarkDesign)
        if design != "position_adaptive"  # its kinds of buckets stand above
    },
    "per_layer shared": {
        "landmarks": True,
        "landmark_design": "per_layer",
        "share_landmarks": True,
    },
    "per_layer one gate": {
        "landmarks": True,
        "landmark_design": "per_layer",
        "share_landmarks": True,
        "share_gates": True,
    },
}
_BUCKETS = 32


def trial_adapter(setting: Setting, design: str = LORA, trial: int = 0) -> HyLoRADAConfig:
    """Return a trial's adapter config for a design; LoRA alone is what PEFT can train too."""
    size = setting.block_size
    lora: dict[str, Any] = {
        "r": setting.rank_of(trial),
        "lora_alpha": ALPHA,
        "position_bias": False,
        "landmarks": False,
    }
    sizes = {"max_positions": size, "num_buckets": min(_BUCKETS, size)}
    return HyLoRADAConfig(**{**lora, **sizes, **DESIGNS[design]})
