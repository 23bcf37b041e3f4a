"""What a study is given, and its checks: before any compute, and before anything is written."""

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hylorada import InputError

from ._experiment import check_artifacts
from ._options import Options
from ._paths import path_problem
from ._points import target_modules
from ._provenance import code_version, command_line, package_versions
from ._study import Study
from ._tracking import check_tracking, unwritable

_MOST_SEATS = 1024
_LONG = 1000  # characters a token: a text longer than that many blocks surely holds one


@dataclass(frozen=True)
class Material:
    """The checked inputs of a study: tokenised text and what identifies text and base."""

    blocks: Mapping[str, Any]
    provenance: Mapping[str, Any]

    def inputs(self) -> dict[str, str]:
        """What identifies base and text; a study folder is tied to it."""
        return {
            k: str(v)
            for k, v in self.provenance.items()
            if k.endswith("_fingerprint") and not k.startswith("study") and v is not None
        }


def prepare(study: Study, options: Options, join: Callable[[], None] | None = None) -> Material:
    """Check everything that can be checked before any compute, and tokenise.

    Args:
        study: to run.
        options: where.
        join: joins a cluster and checks it, before the text's cache is written.

    Raises:
        InputError: all problems found; nothing has been written.
    """
    from hylorada import load_tokenizer
    from hylorada._bases import target_problems

    problems, base, text = _inputs(study.to_dict(), options)
    if base is not None and (targets := target_modules(study)):
        problems += target_problems(study.model, targets)
    if join is not None and not problems:
        join()
    blocks: dict[str, Any] = {}
    if base is not None and text is not None:
        tokenizer = _attempt(problems, load_tokenizer, study.model)
        if tokenizer is not None:
            blocks = _blocks(problems, study, options, text, tokenizer)
    if problems or base is None or text is None:
        raise InputError(problems)
    return Material(blocks, _provenance(study, base, text, blocks))


def input_problems(values: Mapping[str, Any], options: Options) -> list[str]:
    """What is wrong with base, text and places to write to; for a study that is itself wrong elsewhere."""
    return _inputs(values, options)[0]


def _inputs(values: Mapping[str, Any], options: Options) -> tuple[list[str], Any, Any]:
    """Problems, base and text, as far as these fields of a study are there and of the right type."""
    from hylorada import inspect_base, load_text

    problems = []
    if problem := path_problem(options.storage) or unwritable(options.storage):
        problems.append(f"storage {str(options.storage)!r} can't be written: {problem}")
    if options.tracking_uri is not None:
        unusable = check_tracking(options.tracking_uri)
        name = values.get("name")
        problems += unusable or (check_artifacts(options.tracking_uri, name) if isinstance(name, str) else [])
    problems += _address_problems(options.address)
    if options.seats is not None and not 1 <= options.seats <= _MOST_SEATS:
        limit = "least 1" if options.seats < 1 else f"most {_MOST_SEATS}"
        problems.append(f"seats must be at {limit}, got {options.seats}")
    model, data, column, size = (values.get(k) for k in ("model", "data", "text_column", "block_size"))
    base = _attempt(problems, inspect_base, model) if isinstance(model, str) else None
    if base and base.max_positions and isinstance(size, int) and size > base.max_positions:
        problems.append(f"block_size {size} exceeds model limit {base.max_positions} ({model})")
    text = None
    if isinstance(data, str) and isinstance(column, str | None):
        text = _attempt(problems, load_text, data, text_column=column)
    return problems, base, text


def _address_problems(address: str | None) -> list[str]:
    """Whether anything listens at a cluster's address: Ray itself waits for minutes."""
    if address is None or address == "auto":
        return []
    if address.startswith("ray://"):
        return [f"address {address!r}: Ray Client is not supported; run on a node, with auto or HOST:6379"]
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        return [f"address {address!r} must be auto or HOST:PORT"]
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, UnicodeError) as error:  # the second of names that can't be looked up
        return [f"address {address!r} can't be reached: {error}"]
    return []


def _blocks(problems: list[str], study: Study, options: Options, text: Any, tokenizer: Any) -> dict[str, Any]:
    """The blocks of each split; a text that may be too short is tried before anything is written."""
    from hylorada import build_blocks

    limits = {"train": None, "validation": study.eval_blocks, "test": study.test_blocks}
    long = {s for s in limits if sum(map(len, text.splits[s])) > _LONG * study.block_size}
    blocks = {}
    for split in sorted(limits, key=lambda s: (s in long, s == "train")):
        if problems and split in long:
            continue
        cache = options.storage / "cache" if split in long and split == "train" else None
        found = _attempt(
            problems, build_blocks, text.splits[split], tokenizer, study.block_size, split=split, cache_dir=cache
        )
        if found is not None and split == "test" and found.num_blocks < 2:
            problems.append(
                f"split 'test': 1 block of {study.block_size} tokens, the verdict needs 2; lower block_size or add text"
            )
        elif found is not None:
            limit = limits[split]
            take = found.spread if split == "test" and study.spread_test else found.head
            blocks[split] = take(min(limit, found.num_blocks) if limit else None)
    return blocks


def _attempt(problems: list[str], function: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except InputError as error:
        problems += error.problems
        return None


def _provenance(study: Study, base: Any, text: Any, blocks: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "command": command_line(),
        **code_version(),
        **{f"version.{k}": v for k, v in package_versions().items()},
        "model": study.model,
        "model_fingerprint": base.fingerprint,
        "model_config_fingerprint": base.config_fingerprint,
        "model_revision": base.revision,
        "model_type": base.model_type,
        "data": study.data,
        "data_fingerprint": text.fingerprint,
        "data_revision": text.revision,
        "block_size": study.block_size,
        **{f"{s}_blocks": b.num_blocks for s, b in blocks.items()},
        **{f"{s}_fingerprint": b.fingerprint for s, b in blocks.items()},
        "dtype": study.dtype,
        "seed": study.seed,
        "study_fingerprint": study.fingerprint(),
    }
