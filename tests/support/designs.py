"""All designs and all families of bases, for tests of properties that all of them share."""

from pathlib import Path
from typing import Any

from hylorada import load_landmark_design

FAMILIES = ["gpt2", "llama", "gpt_neox", "mistral", "qwen2", "qwen3"]
# One family for each of the three module trees; the other families have llama's.
ARCHITECTURES = ["gpt2", "llama", "gpt_neox"]
BARE: dict[str, Any] = {"landmarks": False, "position_bias": False}
LEARNABLE: dict[str, Any] = {"landmark_bucketing": "learnable"}
MY_DESIGN = Path(__file__).with_name("my_design.py")
DESIGNS: dict[str, dict[str, Any]] = {
    "LoRA": {**BARE, "use_rslora": False},
    "rsLoRA": BARE,
    "DoRA": {**BARE, "use_dora": True},
    "position bias": {"landmarks": False},
    "fixed, log": {},
    "fixed, linear": {"bucket_spacing": "linear", "num_landmarks": 5},
    "learnable, log": LEARNABLE,
    "learnable, random": {
        **LEARNABLE,
        "boundary_init": "random",
        "num_buckets": 7,
        "temperature": 0.1,
    },
    "learnable, curriculum": {
        **LEARNABLE,
        "boundary_init": "fixed",
        "boundary_warmup": 0.3,
        "temperature": 0.2,
    },
    "soft, random": {
        "landmark_bucketing": "soft",
        "boundary_init": "random",
        "num_buckets": 6,
        "temperature": 0.1,
    },
    "one bucket": {"num_buckets": 1},
    "global": {"landmark_design": "global"},
    "per layer": {"landmark_design": "per_layer"},
    "per layer, shared": {
        "landmark_design": "per_layer",
        "share_landmarks": True,
        "num_landmarks": 2,
    },
    "shifted sparse attention": {"shifted_sparse_attention": True},
    "per layer, one gate": {
        "landmark_design": "per_layer",
        "share_landmarks": True,
        "share_gates": True,
    },
    "attention": {"landmark_design": "attention"},
    "per layer, all linear": {
        "landmark_design": "per_layer",
        "target_modules": ("all-linear",),
        "lora_alpha": 2.0,  # random updates of every module would drown the tokens
    },
    "own": {"landmark_design": load_landmark_design(f"{MY_DESIGN}:Gated")},
    "own, pooling": {"landmark_design": load_landmark_design(f"{MY_DESIGN}:Pooled")},
    "attention, DoRA": {"landmark_design": "attention", "use_dora": True, "num_landmarks": 4},
}
