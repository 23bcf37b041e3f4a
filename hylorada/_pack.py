"""The pack: one frozen base and the adapters of K seats in the same forward and backward.

The base sees the K x b rows of all seats as one batch. Each adapted linear module adds that seat's low-rank update to
each seat's rows; the stacked factors are built from the adapters' own parameters, so gradients land there. The base has
no gradient and every operation acts row by row, so a seat's numbers don't depend on who sits beside it, and a seat that
turns to NaN harms no other.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ._adapter import Adapter
from ._architectures import architecture_of, head_of, linear_modules
from ._head_loss import head_nll


class _Pass:
    """One forward of K adapters: what the hooks compute."""

    def __init__(self, adapters: Sequence[Adapter], positions: Tensor) -> None:
        ranks = {a.config.r for a in adapters}
        if len(ranks) > 1:
            raise ValueError(f"the seats of a pack must have equal `r`, got {sorted(ranks)}")
        self.adapters = adapters
        self.rank = ranks.pop()
        shared = len(positions) == 1
        self.positions = [positions] * len(adapters) if shared else list(positions.chunk(len(adapters)))
        self.factors = [
            None if a.position_bias is None else a.position_bias(p)
            for a, p in zip(adapters, self.positions, strict=True)
        ]

    def add_update(self, path: str, layer: int, x: Tensor, output: Tensor) -> Tensor | None:
        """output + gain * (x @ A.T) @ B.T for the rows of every seat that adapts this module."""
        updates = [a.lora_at(path) for a in self.adapters]
        seats = [k for k, u in enumerate(updates) if u is not None]
        if not seats:
            return None
        rows, length, d_in = len(x) // len(updates), x.shape[1], x.shape[2]
        x = self._select(x.view(len(updates), rows, length, d_in), seats)
        x = self._dropout(x, seats)
        low_rank_in = torch.stack([u.lora_A for u in updates if u is not None]).to(x.dtype)  # [S, r, d_in]
        low_rank_out = torch.stack([u.lora_B for u in updates if u is not None]).to(x.dtype)  # [S, d_out, r]
        low = torch.bmm(x.reshape(len(seats), -1, d_in), low_rank_in.mT)
        low = low.view(len(seats), rows, length, self.rank) * self._gain(layer, seats, x.dtype)
        delta = torch.bmm(low.view(len(seats), -1, self.rank), low_rank_out.mT)
        delta = delta.view(len(seats), rows, length, -1)
        stacked = output.view(len(updates), rows, length, -1)
        if len(seats) == len(updates):
            return (stacked + delta).view(output.shape)
        return stacked.index_add(0, torch.tensor(seats, device=output.device), delta).view(output.shape)

    def add_landmarks(self, hidden: Tensor) -> Tensor | None:
        """Each seat's landmarks on its own rows."""
        if all(a.landmark is None for a in self.adapters):
            return None
        parts = zip(self.adapters, hidden.chunk(len(self.adapters)), self.positions, strict=True)
        return torch.cat([h if a.landmark is None else a.landmark(h, p) for a, h, p in parts])

    @staticmethod
    def _select(x: Tensor, seats: list[int]) -> Tensor:
        return x if len(seats) == len(x) else x[seats]

    def _dropout(self, x: Tensor, seats: list[int]) -> Tensor:
        """Inverted dropout on x [S, b, T, d_in]; every seat draws from its own stream."""
        active = [self.adapters[k] for k in seats]
        if not any(a.training and a.config.lora_dropout for a in active):
            return x
        masks = torch.ones_like(x)
        for mask, adapter in zip(masks, active, strict=True):
            if adapter.training and (p := adapter.config.lora_dropout):
                mask.bernoulli_(1 - p, generator=adapter.dropout_stream).div_(1 - p)
        return x * masks

    def _gain(self, layer: int, seats: list[int], dtype: torch.dtype) -> Tensor:
        """What multiplies the low-rank activations: scaling times position bias, [S, 1 or b, 1 or T, 1]."""
        gains, at_least = [], torch.promote_types(dtype, torch.float32)
        for k in seats:
            factor = self.factors[k]
            gain = torch.ones_like(self.positions[k], dtype=at_least) if factor is None else factor[layer]
            gains.append(self.adapters[k].config.scaling * gain)
        return torch.stack(gains)[..., None].to(dtype)


class Pack:
    """Runs adapters on one base.

    Args:
        base: a supported causal language model; it is frozen and put in eval mode.

    Raises:
        InputError: the base's model type is not supported.

    Example:
        >>> pack = Pack(base)                                          # doctest: +SKIP
        >>> nll = pack.token_nll([first, second], blocks)              # doctest: +SKIP
        >>> nll.mean((1, 2)).sum().backward()  # each adapter has its solo gradient  # doctest: +SKIP
    """

    def __init__(self, base: PreTrainedModel) -> None:
        architecture = architecture_of(base.config.model_type)
        self.base = base.eval().requires_grad_(False)
        self._body = base.get_submodule(architecture.body)
        self._head = head_of(base)
        self._pass: _Pass | None = None
        self._handles = [
            base.get_submodule(path).register_forward_hook(self._linear_hook(path, target.layer))
            for path, target in linear_modules(base).items()
        ]
        self._handles.append(base.get_submodule(architecture.final_norm).register_forward_hook(self._norm_hook))

    def close(self) -> None:
        """Take the hooks off; the base is then as it came."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def token_nll(self, adapters: Sequence[Adapter], input_ids: Tensor) -> Tensor:
        """NLL in nats of each predicted token.

        Args:
            adapters: K adapters of equal rank; train or eval mode decides on dropout.
            input_ids: [K, b, T]; seat k's rows are ``input_ids[k]``.

        Returns:
            [K, b, T - 1]: entry t predicts token t + 1 from tokens 0..t.
        """
        seats, rows, length = input_ids.shape
        flat = input_ids.reshape(seats * rows, length)
        with self.active(adapters, torch.arange(length, device=flat.device)[None]):
            hidden = self._body(input_ids=flat, use_cache=False).last_hidden_state
        nll = head_nll(hidden[:, :-1], *self._head, flat[:, 1:])
        return nll.view(seats, rows, length - 1)

    @contextmanager
    def active(self, adapters: Sequence[Adapter], positions: Tensor) -> Iterator[None]:
        """Within it the base computes with these adapters; with none it computes as it came.

        Args:
            adapters: of the K seats; the batch is split among them in equal runs of rows.
            positions: [1, T] for all rows, or [K * b, T].
        """
        before = self._pass
        self._pass = _Pass(tuple(adapters), positions) if adapters else None
        try:
            yield
        finally:
            self._pass = before

    def _linear_hook(self, path: str, layer: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor | None]:
        def add_update(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            return None if self._pass is None else self._pass.add_update(path, layer, inputs[0], output)

        return add_update

    def _norm_hook(self, _module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        return None if self._pass is None else self._pass.add_landmarks(output)
