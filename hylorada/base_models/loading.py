"""Load bases, the frozen language models under an adapter, and say what is wrong with one."""

import contextlib
import hashlib
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import logging as transformers_logging

from hylorada.base_models.architectures import ARCHITECTURES, select_targets
from hylorada.base_models.builtin_names import SMOLLM2, TINY
from hylorada.base_models.finding import BaseLocation, cached_commit, find_base
from hylorada.errors import InputError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # takes seconds to import

SUPPORTED_MODEL_TYPES = tuple(sorted(ARCHITECTURES))

# The GGUF file holds the same values, but reading it takes seconds: its tokenizer is read too.
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

_NO_CODE = "hylorada never runs code that comes with a model"
_MOST_NAMED = 3  # tensors, in a message
# A buffer in GPT-2 files from before 2023; transformers ignores only its companion, `attn.bias`.
_OLD_BUFFER = re.compile(r"\.attn\.masked_bias$")


@dataclass(frozen=True)
class BaseInfo:
    """Facts about a base that need no weights to be loaded.

    Attributes:
        name: as the user gave it.
        model_type: name of the architecture in transformers.
        hidden_size: width of the hidden states.
        num_layers: number of decoder layers.
        max_positions: the longest sequence it takes; None where its config sets no limit.
        num_parameters: number of all parameters, tied ones counted once.
        fingerprint: first 16 hex digits of the SHA-256 over the weight files; for a base from the
            hub, its commit.
        config_fingerprint: the same over the contents of config.json; None where ``fingerprint``
            covers those too (a commit, or a GGUF file).
        revision: commit of a base from the hub, else None.
        num_embeddings: rows of the embedding table; every token id must be smaller.
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


def inspect_base(model: str) -> BaseInfo:
    """Read a base's config, hash its weight files and check their names and shapes against it.

    No weights are loaded.

    Args:
        model: `tiny`, `smollm2-135m`, a folder with a config.json, or a hub id.

    Raises:
        InputError: the base can't be found, its architecture isn't supported, or its weights don't
            match its config.

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
        count = _count_builtin if model == TINY else _count_and_check
        num_parameters, num_embeddings = count(model, source, config)
    commit = None if source.weights else cached_commit(source.location)
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
        num_embeddings=num_embeddings,
    )


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a base.

    Raises:
        InputError: the base can't be found, its tokenizer can't be loaded, or it is a slow one;
            byte counts need the offsets that only fast tokenizers return.
    """
    source = find_base(model)
    with _loading(model, source):
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                source.location, **source.options()
            )
        except Exception as error:  # a loader raises errors of every kind; see `_loading`
            if problem := _tokenizer_problem(source):
                raise InputError(f"model {model!r}: {problem}") from error
            raise
    if not tokenizer.is_fast:
        raise InputError(
            f"model {model!r}: its tokenizer is slow (no tokenizer.json); a fast one is needed"
        )
    return tokenizer


def load_base(
    model: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    device_map: str | Mapping[str, int | str] | None = None,
) -> "PreTrainedModel":
    """Load a base: frozen, in eval mode, without a key/value cache.

    Args:
        model: `tiny`, `smollm2-135m`, a folder with a config.json, or a hub id.
        dtype: dtype of all parameters.
        device: device of all parameters.
        device_map: devices of the layers instead, as transformers takes them: "auto" or "balanced"
            spread the base over all GPUs, a mapping names a device for each module.

    Raises:
        InputError: the base can't be found, its architecture isn't supported, or its weights don't
            match its config.
    """
    source = find_base(model)
    _load_config(model, source)  # raises where the architecture isn't supported
    with _loading(model, source):
        base = _from_pretrained(model, source, dtype=dtype, device_map=device_map)
    base.config.use_cache = False
    if not source.weights:
        # transformers no longer records the commit
        base.config._commit_hash = cached_commit(source.location)
    base.requires_grad_(False).eval()
    if device_map is None:
        base.to(device=device)  # type: ignore[call-arg]
    return base


def _from_pretrained(model: str, source: BaseLocation, **options: Any) -> "PreTrainedModel":
    """Load a base, and refuse missing and unknown weights.

    transformers would initialise missing weights with random numbers.
    """
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        source.location,
        attn_implementation="sdpa",
        ignore_mismatched_sizes=True,  # the error below names them
        output_loading_info=True,
        **source.options(),
        **options,
    )
    base: PreTrainedModel
    base, loading_info = loaded
    if mismatches := _mismatches(loading_info):
        raise InputError(
            f"model {model!r}: its weights don't match its config: they {', and '.join(mismatches)}"
        )
    return base


def _mismatches(loading_info: dict[str, Any]) -> list[str]:
    """Return a clause for each way in which weights differ from what the config declares."""
    unknown = [n for n in sorted(loading_info["unexpected_keys"]) if not _OLD_BUFFER.search(n)]
    shapes = {
        name: f"{name!r} {list(actual)} instead of {list(expected)}"
        for name, actual, expected in loading_info["mismatched_keys"]
    }
    clauses = {
        "lack": [repr(n) for n in sorted(loading_info["missing_keys"])],
        "have unknown": [repr(n) for n in unknown],
        "have": [shapes[n] for n in sorted(shapes)],
    }
    return [f"{verb} {_listed(names)}" for verb, names in clauses.items() if names]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _count_and_check(model: str, source: BaseLocation, config: PreTrainedConfig) -> tuple[int, int]:
    """Check a base's weights, and return its numbers of parameters and of embeddings."""
    empty = _without_weights(config)
    embedding: Any = empty.get_input_embeddings()
    _check_weights(model, source)
    return int(empty.num_parameters()), int(embedding.num_embeddings)


def _count_builtin(_: str, source: BaseLocation, config: PreTrainedConfig) -> tuple[int, int]:
    """Return these numbers for the built-in base from its file, whose weights the tests check."""
    with safe_open(source.weights[0], framework="np") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    return sum(map(math.prod, shapes)), int(config.vocab_size)


def _check_weights(model: str, source: BaseLocation) -> None:
    """Compare names and shapes of the weights on this machine with what the config declares."""
    if source.gguf_file:  # reading it would decode all weights
        return
    try:
        _from_pretrained(model, replace(source, local_files_only=True), device_map="meta")
    except OSError:
        if source.weights:
            raise
        # a base of the hub whose weights have not been downloaded yet


def smollm2_config() -> PreTrainedConfig:
    """Return the configuration of SmolLM2-135M, without reading its file."""
    return transformers.AutoConfig.for_model("llama", **_SMOLLM2_SHAPE, tie_word_embeddings=True)


def _load_config(model: str, source: BaseLocation) -> PreTrainedConfig:
    if model == SMOLLM2:
        return smollm2_config()
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
            f"model {model!r}: architecture {config.model_type!r} is not supported; "
            f"one of: {supported}"
        )
    return config


def _foreign_code(config: dict[str, Any]) -> str | None:
    """Name the code outside transformers that a config.json asks it to run, if there is any."""
    # For a supported type transformers ignores `auto_map` and uses its own code.
    if config.get("auto_map") and config.get("model_type") not in SUPPORTED_MODEL_TYPES:
        return "code of its own (auto_map)"
    kernels = [
        name
        for name, value in config.items()
        if name.endswith("attn_implementation") and "/" in str(value)
    ]
    return f"a kernel of the hub ({kernels[0]})" if kernels else None


def target_problems(model: str, names: Iterable[str]) -> list[str]:
    """Return a problem for each target module that the base lacks; no weights are loaded."""
    base = _without_weights(_load_config(model, find_base(model)))
    problems = []
    for name in sorted(names):
        try:
            select_targets(base, (name,))
        except InputError as error:
            problems += error.problems
    return problems


def _without_weights(config: PreTrainedConfig) -> "PreTrainedModel":
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
    """Hash the values of a config.json, whatever their order and the version that wrote them."""
    values = json.loads(path.read_text(encoding="utf-8"))
    values.pop("transformers_version", None)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _loading(model: str, source: BaseLocation) -> Iterator[None]:
    """Silence progress bars and logs, and turn every error into one line that names the base."""
    level, bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        # No setting turns off the progress bar of the GGUF reader, so its output is caught.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except InputError:
        raise
    except Exception as error:  # a loader that meets a foreign file raises errors of every kind
        raise InputError(_problem(model, source, error)) from error
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def _problem(model: str, source: BaseLocation, error: BaseException) -> str:
    if is_gated(error):
        return f"model {model!r}: access to {model} needs approval and a token"
    if not source.weights and (hint := nearest(model, (TINY, SMOLLM2))).startswith("did you mean"):
        return f"model {model!r}: no folder and no hub model; {hint}"
    if not source.weights and source.local_files_only:
        return (
            f"model {model!r}: not a folder, not cached, and the hub can't be reached. "
            f"Download it with: hf download {model}"
        )
    return f"model {model!r}: {first_line(error)}"


def _tokenizer_problem(source: BaseLocation) -> str | None:
    """Say what is wrong with the tokenizer files of a folder; None where that is unknown."""
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
        return (
            "the folder has no usable tokenizer; it must hold tokenizer.json, "
            "as `save_pretrained` writes it"
        )
    return None


def is_gated(error: BaseException | None) -> bool:
    """Return whether an error, or one in its chain of causes, is the hub's refusal of access."""
    while error is not None:
        if type(error).__name__ == "GatedRepoError" or "is a gated dataset" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, and the second where the first ends in a colon.

    The error's type stands in front where there is no message, or only the key of a `KeyError`.
    """
    lines = str(error).strip().splitlines()
    if not lines or isinstance(error, KeyError):
        lines[:0] = [f"{type(error).__name__}:"]
    return " ".join(line.strip() for line in lines[: 1 + lines[0].endswith(":")]).removesuffix(":")
