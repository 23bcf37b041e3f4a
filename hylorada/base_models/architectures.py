"""Module paths of each supported base: decoder layers, final norm, head, modules to adapt."""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hylorada.base_models.builtin_names import ALL_LINEAR
from hylorada.errors import InputError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # slow to import


@dataclass(frozen=True)
class Architecture:
    """Module paths of one family of bases.

    Attributes:
        body: the model without its head.
        layers: the list of decoder layers.
        final_norm: the norm after the last layer.
        attention_projections: suffixes of the linear modules that LoRA adapts by default.
        attention: path, within a decoder layer, of the module that calls transformers' attention
            interface.
        mlp_output: path, within a decoder layer, of the linear module that ends the MLP.
    """

    body: str
    layers: str
    final_norm: str
    attention_projections: tuple[str, ...]
    attention: str
    mlp_output: str


_GPT2 = Architecture(
    body="transformer",
    layers="transformer.h",
    final_norm="transformer.ln_f",
    attention_projections=("c_attn", "attn.c_proj"),
    attention="attn",
    mlp_output="mlp.c_proj",
)
_LLAMA = Architecture(
    body="model",
    layers="model.layers",
    final_norm="model.norm",
    attention_projections=("q_proj", "k_proj", "v_proj", "o_proj"),
    attention="self_attn",
    mlp_output="mlp.down_proj",
)
_GPT_NEOX = Architecture(
    body="gpt_neox",
    layers="gpt_neox.layers",
    final_norm="gpt_neox.final_layer_norm",
    attention_projections=("query_key_value", "attention.dense"),
    attention="attention",
    mlp_output="mlp.dense_4h_to_h",
)

ARCHITECTURES = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gpt_neox": _GPT_NEOX,
}


def architecture_of(model_type: str) -> Architecture:
    """Return the module paths of a model type.

    Raises:
        InputError: the model type isn't supported; guessed paths would adapt only a part of it.
    """
    if model_type not in ARCHITECTURES:
        raise InputError(
            f"model type {model_type!r} is not supported; {nearest(model_type, ARCHITECTURES)}"
        )
    return ARCHITECTURES[model_type]


def decoder_layers(base: "PreTrainedModel") -> dict[str, nn.Module]:
    """Return the decoder layers in order, keyed by their path in the base."""
    path = architecture_of(base.config.model_type).layers
    return {f"{path}.{name}": layer for name, layer in base.get_submodule(path).named_children()}


@dataclass(frozen=True)
class Target:
    """A linear module to adapt.

    Attributes:
        in_features: d_in.
        out_features: d_out.
        layer: index of its decoder layer.
    """

    in_features: int
    out_features: int
    layer: int


def linear_modules(base: "PreTrainedModel") -> dict[str, Target]:
    """Return every linear module inside the decoder layers, keyed by its path in the base."""
    targets: dict[str, Target] = {}
    for index, (path, layer) in enumerate(decoder_layers(base).items()):
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear):
                targets[f"{path}.{name}"] = Target(module.in_features, module.out_features, index)
            elif isinstance(module, Conv1D):  # its weight is transposed: [d_in, d_out]
                targets[f"{path}.{name}"] = Target(
                    module.weight.shape[0], module.weight.shape[1], index
                )
    return targets


def select_targets(
    base: "PreTrainedModel", target_modules: tuple[str, ...] | None
) -> dict[str, Target]:
    """Return the linear modules to adapt, keyed by their path in the base.

    Args:
        base: a supported model.
        target_modules: suffixes of module paths, as PEFT matches them; None or none selects the
            attention projections, ``("all-linear",)`` all modules.

    Raises:
        InputError: a name matches no module.
    """
    modules = linear_modules(base)
    if target_modules == (ALL_LINEAR,):
        return modules
    names = target_modules or architecture_of(base.config.model_type).attention_projections
    matches = {name: [p for p in modules if p == name or p.endswith(f".{name}")] for name in names}
    missing = [name for name, paths in matches.items() if not paths]
    if missing:
        known = {path.rsplit(".", 1)[-1] for path in modules}
        raise InputError(
            [f"target {n!r} matches 0 modules; closest: {_closest(n, known)}" for n in missing]
        )
    wanted = {path for paths in matches.values() for path in paths}
    return {path: target for path, target in modules.items() if path in wanted}


def _closest(name: str, known: set[str]) -> str:
    return (difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0) or ["none"])[0]


def head_of(base: "PreTrainedModel") -> tuple[Tensor, Tensor | None]:
    """Return the weight [V, d] and the bias [V], if there is one, of the language-model head."""
    head = base.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    return head.weight, head.bias
