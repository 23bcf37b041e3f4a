"""One adapter on one base, for use outside studies: a pack of one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ._adapter import Adapter
from ._config import HyLoRADAConfig
from ._pack import Pack


class HyLoRADAModel(nn.Module):
    """A frozen causal language model with one HyLoRADA adapter.

    Args:
        base: GPT-2, Llama-like or GPT-NeoX; it is frozen in place.
        config: the adapter; ``max_positions`` must be the length of the blocks it is trained on, not the base's limit:
            buckets that no position of the training text falls into learn nothing.
        seed: of the adapter's initial values and dropout.

    Raises:
        InputError: an unsupported base, a target module that doesn't exist, or no ``max_positions``.

    Example:
        >>> from hylorada import HyLoRADAConfig, load_base
        >>> config = HyLoRADAConfig(landmark_bucketing="learnable", num_buckets=4, max_positions=256)
        >>> model = HyLoRADAModel(load_base("tiny"), config)
        >>> ids = torch.arange(32)[None]
        >>> model(input_ids=ids, labels=ids).loss.backward()
        >>> model.get_learned_boundaries()
        tensor([ 0.5000,  1.5000, 22.5000])
    """

    def __init__(self, base: PreTrainedModel, config: HyLoRADAConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.adapter = Adapter(base, config, seed=seed)
        self.base = base
        self._pack = Pack(base)
        self._enabled = True

    @property
    def config(self) -> HyLoRADAConfig:
        return self.adapter.config

    def forward(self, input_ids: Tensor, **kwargs: Any) -> Any:
        """The base's own forward with the adapter in it.

        Args:
            input_ids: [b, T]; positions count from 0 in every row.
            **kwargs: passed on to the base (``labels`` for its built-in loss, ...).

        Returns:
            The base's output: ``logits`` [b, T, V], and ``loss`` where labels were given.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        with self._pack.active([self.adapter] if self._enabled else [], len(input_ids), positions):
            return self.base(input_ids=input_ids, use_cache=False, **kwargs)

    def train(self, mode: bool = True) -> "HyLoRADAModel":
        """Switch the adapter's dropout; the frozen base stays in eval mode."""
        super().train(mode)
        self.base.eval()
        return self

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Within it the model is the base alone."""
        self._enabled = False
        try:
            yield
        finally:
            self._enabled = True

    def get_learned_boundaries(self) -> Tensor | None:
        """The sorted bucket boundaries [B-1] in token positions; None where they are not learnable."""
        return self.adapter.learned_boundaries()
