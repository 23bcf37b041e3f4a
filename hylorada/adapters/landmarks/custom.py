"""Landmark designs of your own: a class in a Python file, named in a configuration.

``landmark_design="my_design.py:MyLandmark"`` names one. The file must be loaded first, because
code that comes with a saved adapter never runs by itself; a study loads its files in every process.
"""

import copy
import inspect
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from hylorada.adapters.buckets import Positions
from hylorada.adapters.landmarks.base import DrawMasks, Landmark, dropped
from hylorada.adapters.running_pools import Tokens
from hylorada.config import HyLoRADAConfig
from hylorada.config_values import CUSTOM_DESIGN
from hylorada.errors import InputError

_NOISE = 0.1
_loaded: dict[str, tuple[str, ModuleType]] = {}  # source and module by the file's name


class CustomLandmark(Landmark):
    """The base class of a landmark design of your own: h' = h + context(h), after the final norm.

    A subclass defines :meth:`context` and makes its parameters in ``__init__``, which takes the
    arguments below. Its parameters are trained, saved and counted like those of every other design.
    Buffers are not saved, so only buffers with ``persistent=False`` are allowed.
    In a pack, each seat calls its own module on its own rows.

    Before a study trains, it checks that an untrained module adds zeros, that equal seeds give
    equal initial values, that no output depends on later tokens or other rows, and that every
    parameter gets a gradient.

    Args:
        config: configuration of the adapter.
        base: configuration of the base, with ``hidden_size`` d.
        seed: seed of the initial values; draw them with :func:`initial_gates`.
        dtype: dtype of all parameters.

    Attributes:
        landmarks: [L, d], to be set by the subclass; it must start at zero.

    Example:
        >>> class Here(CustomLandmark):
        ...     def __init__(self, config, base, *, seed, dtype):
        ...         super().__init__()
        ...         shape = (config.num_landmarks, base.hidden_size)
        ...         self.landmarks = nn.Parameter(torch.zeros(shape, dtype=dtype))
        ...         self.gates = initial_gates(*shape, seed=seed, name="gates", dtype=dtype)
        ...
        ...     def context(self, hidden, positions, tokens):
        ...         return torch.sigmoid(hidden @ self.gates.T) @ self.landmarks
    """

    at_norm = True
    design: ClassVar[str] = ""
    landmarks: nn.Parameter

    @property
    def num_landmarks(self) -> int:
        return len(self.landmarks)

    @abstractmethod
    def context(self, hidden: Tensor, positions: Tensor, tokens: Tokens) -> Tensor:
        """Return what the landmarks add.

        Args:
            hidden: [b, T, d], the output of the final norm in the dtype of the parameters.
            positions: [1 or b, T], the tokens' positions.
            tokens: the tokens' running means and maxima. A design that uses them returns their
                number as ``num_pools`` and gives each its own ``index``.

        Returns:
            [b, T, d].
        """

    def forward(self, hidden: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the hidden states with the landmarks added.

        Args:
            hidden: [b, T, d], of any floating dtype.
            positions: [1 or b, T].
            mask: [b, T], 0 at pads.

        Returns:
            [b, T, d] in the dtype of ``hidden``.
        """
        return hidden + self.added(hidden, positions, Tokens(mask)).to(hidden.dtype)

    def added(self, hidden: Tensor, positions: Tensor, tokens: Tokens) -> Tensor:
        """Return :meth:`context` of hidden states of any floating dtype."""
        return self.context(hidden.to(self.landmarks.dtype), positions, tokens)


def load_landmark_design(design: str, source: str | None = None) -> str:
    """Run the Python file of a landmark design of your own.

    The same file with the same content is run once. Another content under the same file name takes
    its place, for adapters that are built from then on.

    Args:
        design: ``FILE.py:CLASS``, where the file may have a folder.
        source: content of the file; None reads it.

    Returns:
        The name of the design for ``landmark_design``, which is without the folder.

    Raises:
        InputError: The file can't be read or run, or has no such subclass of
            :class:`CustomLandmark`.

    Example:
        >>> from hylorada import HyLoRADAConfig
        >>> design = load_landmark_design("my_design.py:MyLandmark")  # doctest: +SKIP
        >>> HyLoRADAConfig(landmark_design=design)  # doctest: +SKIP
    """
    path, _, name = design.rpartition(":")
    file = Path(path)
    if not CUSTOM_DESIGN.fullmatch(f"{file.name}:{name}"):
        raise InputError(f"landmark_design {design!r} must be FILE.py:CLASS")
    if source is None:
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"landmark_design {design!r} can't be read: {error}") from error
    if _loaded.get(file.name, ("",))[0] != source:
        _loaded[file.name] = source, _run(design, path, source)
    return _class_of(f"{file.name}:{name}").design


def _run(design: str, path: str, source: str) -> ModuleType:
    module = ModuleType(f"hylorada_design_{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses and pickle look there
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"landmark_design {design!r} can't be run: {type(error).__name__}: {error}"
        ) from error
    return module


def _class_of(design: str) -> type[CustomLandmark]:
    """Return the class of a design whose file has been loaded.

    Raises:
        InputError: The file has not been loaded in this process, or has no such class.
    """
    file, _, name = design.rpartition(":")
    if file not in _loaded:
        raise InputError(
            f"landmark_design {design!r} is code that hylorada runs only if you ask for it; call "
            f"load_landmark_design('FOLDER/{design}') first"
        )
    cls = getattr(_loaded[file][1], name, None)
    if not inspect.isclass(cls) or not issubclass(cls, CustomLandmark) or inspect.isabstract(cls):
        raise InputError(
            f"landmark_design {design!r}: {name} must be a subclass of CustomLandmark with a "
            f"method context, got {cls!r}"
        )
    cls.design = design
    return cls


def build_custom(
    config: HyLoRADAConfig, base: PretrainedConfig, *, seed: int, dtype: torch.dtype
) -> CustomLandmark:
    """Return the module of a design of the user's own.

    Raises:
        InputError: The file has not been loaded in this process, the class can't be built, or the
            module has values that no file would hold.
    """
    design = config.landmark_design
    make: Callable[..., CustomLandmark] = _class_of(design)
    try:
        landmark = make(config, base, seed=seed, dtype=dtype)
    except Exception as error:
        raise InputError(
            f"landmark_design {design!r} can't be built: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(getattr(landmark, "landmarks", None), nn.Parameter):
        raise InputError(f"landmark_design {design!r} must set `landmarks`, a parameter [L, d]")
    if problems := _saving_problems(landmark):
        raise InputError([f"landmark_design {design!r}: {problem}" for problem in problems])
    return landmark


def _saving_problems(landmark: CustomLandmark) -> list[str]:
    """Return what keeps a module from being saved and trained as every other design is."""
    parameters = dict(landmark.named_parameters())
    problems = [
        f"buffer {name!r} is in no checkpoint; register it with persistent=False, or make it a "
        "parameter"
        for name in sorted(landmark.state_dict().keys() - parameters.keys())
    ]
    if "boundaries" in parameters:
        problems.append("no parameter may be called 'boundaries', which are trained apart")
    return problems


def mix_custom(
    modules: Sequence[CustomLandmark | None],
    hidden: Tensor,
    positions: Positions,
    tokens: Tokens,
    masks: DrawMasks | None = None,
) -> Tensor:
    """Return the hidden states with each seat's landmarks of an own design added to its rows.

    Args:
        modules: modules of the K seats; None for a seat without an own design.
        hidden: output of the final norm, [K * b, T, d], of any floating dtype.
        positions: token positions of the pass.
        tokens: tokens of the pass.
        masks: draws the seats' dropout masks; None without dropout.

    Returns:
        [K * b, T, d] in the dtype of ``hidden``.
    """
    seats = len(modules)
    rows = hidden.unflatten(0, (seats, -1)).unbind()  # K of [b, T, d]
    added = [
        torch.zeros_like(own)
        if module is None
        else module.added(own, positions.of(k), tokens.of(k, seats)).to(hidden.dtype)
        for k, (module, own) in enumerate(zip(modules, rows, strict=True))
    ]
    return hidden + dropped(torch.cat(added), seats, masks)


@torch.no_grad()
def custom_problems(
    landmark: CustomLandmark, twin: CustomLandmark, length: int, size: int
) -> list[str]:
    """Return what keeps an untrained module of an own design from being trained.

    Args:
        landmark: the module.
        twin: another one, built with the same arguments.
        length: number of tokens T of a block.
        size: size d of the hidden states.
    """
    problems = []
    pairs = zip(landmark.parameters(), twin.parameters(), strict=True)
    if not all(torch.equal(ours, theirs) for ours, theirs in pairs):
        problems.append(
            "initial values differ between two builds with one seed; draw them with initial_gates"
        )
    problems += _context_problems(landmark, length, size)
    return [f"landmark_design {landmark.design!r}: {problem}" for problem in problems]


def _context_problems(landmark: CustomLandmark, length: int, size: int) -> list[str]:
    """Return what is wrong with what a module adds to two rows of random hidden states."""
    device = landmark.landmarks.device
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, length, size, generator=generator).to(device)
    positions = torch.arange(length, device=device)[None]
    moved = copy.deepcopy(landmark)
    for parameter in moved.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.add_(_NOISE * noise.to(device))
    try:
        added = landmark.added(hidden, positions, Tokens())
        if not isinstance(added, Tensor) or added.shape != hidden.shape:
            shape = list(added.shape) if isinstance(added, Tensor) else type(added).__name__
            return [f"context must return {list(hidden.shape)} for two rows, got {shape}"]
        both, again = (moved.added(hidden, positions, Tokens()) for _ in range(2))
        alone = torch.cat([moved.added(row[None], positions, Tokens()) for row in hidden])
    except Exception as error:
        return [f"context raised {type(error).__name__}: {error}"]
    problems = []
    if added.any():
        problems.append("an untrained module must add zeros; let `landmarks` start at zero")
    if not torch.equal(both, again):
        problems.append("context must not draw random numbers; landmark_dropout is there for that")
    elif not torch.allclose(both, alone, rtol=1e-3, atol=1e-5):
        problems.append("context lets rows of a batch influence each other")
    return problems
