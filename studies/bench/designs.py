"""The designs that are compared: LoRA alone, and LoRA with one thing more."""

from collections.abc import Mapping
from typing import Any

from hylorada import HyLoRADAConfig
from studies.bench.options import Setting

ALPHA = 16
LORA = "LoRA"
DESIGNS: Mapping[str, Mapping[str, Any]] = {  # by name: what the configuration has beside LoRA
    LORA: {},
    "position bias": {"position_bias": True},
    "DoRA": {"use_dora": True},
    "position_adaptive fixed": {"landmarks": True},
    "position_adaptive learnable": {"landmarks": True, "landmark_bucketing": "learnable"},
    "global": {"landmarks": True, "landmark_design": "global"},
    "per_layer": {"landmarks": True, "landmark_design": "per_layer"},
    "per_layer shared": {
        "landmarks": True,
        "landmark_design": "per_layer",
        "share_landmarks": True,
    },
    "attention": {"landmarks": True, "landmark_design": "attention"},
}
_BUCKETS = 32


def trial_adapter(setting: Setting, design: str = LORA) -> HyLoRADAConfig:
    """LoRA alone, which PEFT can train too, or another of :data:`DESIGNS`."""
    size = setting.block_size
    lora: dict[str, Any] = {
        "r": setting.r,
        "lora_alpha": ALPHA,
        "position_bias": False,
        "landmarks": False,
    }
    sizes = {"max_positions": size, "num_buckets": min(_BUCKETS, size)}
    return HyLoRADAConfig(**{**lora, **sizes, **DESIGNS[design]})
