"""Save and load adapters; stock PEFT reads the LoRA part. The files are safetensors and JSON.

A folder holds ``adapter_config.json`` and ``adapter_model.safetensors`` (PEFT's files),
``hylorada_model.safetensors`` (position bias, landmarks, boundaries) and ``hylorada_config.json``
(the configuration, the shape of its base, and the digests that tie the four files together).
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.adapter import Adapter, check_base
from hylorada.base_models.architectures import Target
from hylorada.base_models.builtin_names import SMOLLM2, TINY
from hylorada.base_models.finding import find_base
from hylorada.base_models.lfs_pointers import pointer_problem
from hylorada.base_models.portable_names import portable_path
from hylorada.errors import InputError
from hylorada.runtime.atomic_files import replace_files
from hylorada.saving.finding_adapters import find_adapter, local_folder
from hylorada.saving.tensor_checks import (
    FORMAT,
    base_problems,
    configuration,
    read_fields,
    read_json,
    read_tensors,
    shape_of,
    tensor_problems,
)
from hylorada.saving.trainer_checkpoint import is_checkpoint, load_checkpoint

CONFIG = "hylorada_config.json"
PEFT_CONFIG = "adapter_config.json"
PEFT_TENSORS = "adapter_model.safetensors"
OTHER_TENSORS = "hylorada_model.safetensors"

_FIELDS = {
    "format": str,
    "config": dict,
    "seed": int,
    "base": dict,
    "untrained": bool,
    "sha256": dict,
}
_LORA_NAMES = {"lora_A": "lora_A.weight", "lora_B": "lora_B.weight"}  # our names: PEFT's names


def save_adapter(adapter: Adapter, base: PreTrainedModel, folder: str | Path) -> None:
    """Write an adapter so that ``peft.PeftModel.from_pretrained`` loads its LoRA part.

    PEFT knows neither position bias nor landmarks. For an adapter without them its logits equal
    ours; otherwise they are those of the LoRA part alone.

    Args:
        adapter: an adapter of any configuration.
        base: the base that it was built for.
        folder: created if it doesn't exist; an adapter in it is replaced, other files stay.

    Raises:
        InputError: ``folder`` is a file or empty text, or a tensor has non-finite numbers; nothing
            is written.
    """
    check_base(base)
    folder = local_folder(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"adapter {str(folder)!r}: is a file, must be a folder")
    lora, other = _split(adapter)
    if problems := [
        *tensor_problems(folder / PEFT_TENSORS, lora, lora),
        *tensor_problems(folder / OTHER_TENSORS, other, other),
    ]:
        raise InputError(problems)
    contents = {
        PEFT_CONFIG: _json({**_peft_config(adapter, base), **_base_reference(base, folder)}),
        PEFT_TENSORS: _serialised(lora),
        OTHER_TENSORS: _serialised(other),
    }
    values = {
        "format": FORMAT,
        "config": adapter.config.to_dict(),
        "seed": adapter.seed,
        "base": {"name": _portable_base(base, folder), **shape_of(base)},
        "untrained": adapter.update_is_zero(),
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    # the digests reveal a crash between two renames
    replace_files({folder / name: c for name, c in {**contents, CONFIG: _json(values)}.items()})


def load_adapter(base: PreTrainedModel, folder: str | Path) -> Adapter:
    """Load an adapter that :func:`save_adapter` wrote, or a checkpoint of Trainer.

    Args:
        base: a model of the shape that the adapter was saved with; it is not changed.
        folder: folder of the saved adapter, a ``checkpoint-...`` of Trainer, or the id of a
            repository of the hub, such as ``user/name``. In a folder that holds both, the saved
            adapter is loaded.

    Returns:
        An adapter on the base's device, fp32 (fp64 for an fp64 base).

    Raises:
        InputError: a file or tensor is missing, unexpected, damaged, of another shape or
            non-finite, or the base doesn't fit.
    """
    check_base(base)
    folder = find_adapter(folder)
    # beside a saved adapter, such a file is that of the base or of an earlier checkpoint
    if is_checkpoint(folder) and not (folder / CONFIG).exists():
        return load_checkpoint(base, folder)
    values = _read_config(folder)
    config = configuration(folder / CONFIG, values)
    if problems := base_problems(folder, values["base"], base):
        raise InputError(problems)
    try:
        adapter = Adapter(base, config, seed=values["seed"])
    except InputError as error:
        raise InputError([f"{folder / CONFIG}: {p}" for p in error.problems]) from error
    expected = dict(zip((PEFT_TENSORS, OTHER_TENSORS), _split(adapter), strict=True))
    stored = {name: read_tensors(folder / name) for name in expected}
    problems = _peft_config_problems(folder / PEFT_CONFIG, _peft_config(adapter, base))
    for name, tensors in expected.items():
        problems += tensor_problems(folder / name, tensors, stored[name])
    if problems:
        raise InputError(problems)
    with torch.no_grad():
        for name, tensors in expected.items():
            for key, parameter in tensors.items():
                parameter.copy_(stored[name][key])
    if adapter.update_is_zero() and not values["untrained"]:
        raise InputError(
            f"adapter {str(folder)!r}: adapter has no effect, its B matrices are all zero after "
            "training"
        )
    _check_digests(folder, values["sha256"])
    return adapter


def _split(adapter: Adapter) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the LoRA part keyed by PEFT's names, and everything else keyed by ours."""
    lora: dict[str, Tensor] = {}
    other: dict[str, Tensor] = {}
    for name, parameter in adapter.named_parameters():
        kind, _, rest = name.partition(".")
        if kind == "lora":
            path, field = rest.rsplit(".", 1)
            lora[f"base_model.model.{path.replace('/', '.')}.{_LORA_NAMES[field]}"] = (
                parameter.detach()
            )
        elif kind == "magnitudes":
            lora[f"base_model.model.{rest.replace('/', '.')}.lora_magnitude_vector"] = (
                parameter.detach()
            )
        else:
            other[name] = parameter.detach()
    return lora, other


def _peft_config(adapter: Adapter, base: PreTrainedModel) -> dict[str, Any]:
    """Return the fields of PEFT's ``LoraConfig``.

    They are written by hand so that PEFT versions that know fewer fields read them too.
    """
    config = adapter.config
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "use_rslora": config.use_rslora,
        "use_dora": config.use_dora,
        "lora_dropout": config.lora_dropout,
        # whole paths, because PEFT matches suffixes, and `c_proj` would match GPT-2's MLP too
        "target_modules": sorted(adapter.targets),
        "fan_in_fan_out": _is_transposed(base, adapter.targets),
        "bias": "none",
        "inference_mode": True,
    }


def _base_reference(base: PreTrainedModel, folder: Path) -> dict[str, str | None]:
    """Return the fields by which PEFT finds the base, a path relative to the adapter's folder."""
    # load_base sets the commit of a base from the hub
    revision = getattr(base.config, "_commit_hash", None)
    return {"base_model_name_or_path": _portable_base(base, folder), "revision": revision}


def _portable_base(base: PreTrainedModel, folder: Path) -> str | None:
    """Return the portable name of a loaded base; None for one that was built in memory."""
    name = base.name_or_path or ""
    for builtin in (TINY, SMOLLM2):
        with contextlib.suppress(InputError, OSError):  # it isn't installed, or `name` is no path
            if os.path.samefile(find_base(builtin).location, name):
                return builtin
    return portable_path(name, folder) or None


def _is_transposed(base: PreTrainedModel, targets: Mapping[str, Target]) -> bool:
    """Return whether the adapted modules store their weight as [d_in, d_out] (GPT-2)."""
    return all(isinstance(base.get_submodule(path), Conv1D) for path in targets)


def _serialised(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors.torch.save(
        {n: t.cpu().contiguous() for n, t in tensors.items()}, metadata={"format": "pt"}
    )


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2) + "\n").encode()


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise InputError(f"adapter {str(folder)!r}: no such folder")
    if hint := _checkpoints_in(folder):
        raise InputError(f"adapter {str(folder)!r}: no file {CONFIG}; {hint}")
    paths = [folder / name for name in (CONFIG, PEFT_CONFIG, PEFT_TENSORS, OTHER_TENSORS)]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise InputError([f"adapter {str(folder)!r}: no file {name}" for name in missing])
    if pointers := [problem for path in paths if (problem := pointer_problem(path))]:
        raise InputError([f"adapter {str(folder)!r}: {problem}" for problem in pointers])
    return read_fields(folder / CONFIG, read_json(folder / CONFIG), _FIELDS)


def _checkpoints_in(folder: Path) -> str | None:
    """Return a hint that names a checkpoint if the folder is the output folder of a Trainer."""
    names = [path.name for path in folder.glob("checkpoint-*") if is_checkpoint(path)]
    if (folder / CONFIG).exists() or not names:
        return None
    newest = max(names, key=lambda name: (len(name), name))
    return (
        f"it is the output folder of a Trainer; name one of its {len(names)} checkpoints, "
        f"such as {newest}"
    )


def _peft_config_problems(path: Path, expected: Mapping[str, Any]) -> list[str]:
    """List the fields in which PEFT's config differs from ours, except the name of the base."""
    # older files lack `use_dora`, for which PEFT's default is False
    stored = {"use_dora": False, **read_json(path)}
    if isinstance(targets := stored.get("target_modules"), list):
        stored["target_modules"] = sorted(map(str, targets))
    return [
        f"{path}: {name} is {stored.get(name)!r}, but {CONFIG} and the base say {value!r}"
        for name, value in expected.items()
        if name != "inference_mode" and stored.get(name) != value
    ]


def _check_digests(folder: Path, digests: Mapping[str, Any]) -> None:
    """Check that all files are unchanged and were written by the same save.

    Raises:
        InputError: a file has another digest than the config holds.
    """
    problems = []
    for name in (PEFT_CONFIG, PEFT_TENSORS, OTHER_TENSORS):
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digests.get(name):
            problems.append(
                f"{folder / name} is not the file that {CONFIG} was saved with; "
                "save the adapter again"
            )
    if problems:
        raise InputError(problems)
