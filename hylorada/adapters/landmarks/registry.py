"""The landmark designs by their names in a configuration.

A new design is a module beside this one with a subclass of :class:`Landmark`, an entry here (what
builds it from a configuration and the base's), and its name in
:data:`hylorada.config.LandmarkDesign`. A user's own design needs none of that: it is a class in
the user's file (:mod:`hylorada.adapters.landmarks.custom`).
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn
from transformers import PretrainedConfig

from hylorada.adapters.landmarks.attention_integrated import AttentionIntegratedLandmark
from hylorada.adapters.landmarks.base import Landmark
from hylorada.adapters.landmarks.custom import build_custom
from hylorada.adapters.landmarks.global_mean import LandmarkLoRA
from hylorada.adapters.landmarks.per_layer import PerLayerLandmark
from hylorada.adapters.landmarks.position_adaptive import PositionLandmark
from hylorada.config import HyLoRADAConfig, LandmarkDesign

DESIGNS: Mapping[LandmarkDesign | str, Callable[..., Landmark]] = {
    "attention": AttentionIntegratedLandmark.build,
    "global": LandmarkLoRA.build,
    "per_layer": PerLayerLandmark.build,
    "position_adaptive": PositionLandmark.build,
}


def build_landmark(
    config: HyLoRADAConfig, base: PretrainedConfig, *, seed: int, dtype: torch.dtype
) -> Landmark | None:
    """Return the landmark module that a configuration describes for a base; None if it has none."""
    if not config.has_landmarks:
        return None
    build = DESIGNS.get(config.landmark_design, build_custom)
    return build(config, base, seed=seed, dtype=dtype)


def count_landmark_params(module: nn.Module) -> int:
    """Return the number of trainable values in the landmarks of a module.

    Args:
        module: a landmark module, an adapter or a ``HyLoRADAModel``.

    Example:
        >>> from hylorada import PositionAdaptiveLandmark
        >>> count_landmark_params(PositionAdaptiveLandmark(hidden_size=768, max_positions=512))
        12545
    """
    landmarks = [m for m in module.modules() if isinstance(m, Landmark)]
    return sum(p.numel() for m in landmarks for p in m.parameters())
