"""Whether two saved adapters can be compared block by block."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hylorada import InputError
from studies.reporting.export import read_export

_TOKENISING = ("normalizer", "pre_tokenizer", "model", "added_tokens")  # parts of tokenizer.json


def refuse_unpaired(adapter: Path | None, against: Path) -> None:
    """Refuse two adapters whose losses on the same blocks can't be subtracted.

    Raises:
        InputError: There is no first adapter, or the two were trained on different bases or with
            different tokenizers.
    """
    if adapter is None:
        raise InputError("--against compares two adapters; name the first one with --adapter")
    ours, theirs = _base(read_export(adapter), read_export(against))
    pair = f"--adapter {str(adapter)!r} and --against {str(against)!r} can't be compared"
    if ours != theirs:
        raise InputError(f"{pair}: their bases differ, {ours} and {theirs}")
    ours, theirs = _tokenizer(adapter), _tokenizer(against)
    if None not in (ours, theirs) and ours != theirs:
        raise InputError(f"{pair}: their tokenizers differ (tokenizer.json)")


def _base(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what is known of both bases: fingerprints, else names; equal if nothing is."""
    bits = [str(record.get("quantization", "none")) for record in (ours, theirs)]
    if bits[0] != bits[1]:
        return bits[0], bits[1]
    for name in ("model_fingerprint", "model"):
        if ours.get(name) is not None and theirs.get(name) is not None:
            if ours[name] != theirs[name]:
                return ours[name], theirs[name]
            break
    configs = [record.get("model_config_fingerprint") for record in (ours, theirs)]
    return (configs[0], configs[1]) if None not in configs else (None, None)


def _tokenizer(adapter: Path) -> Any:
    """Return what decides the tokens in an exported folder; None where that is unknown."""
    try:
        values = json.loads((adapter / "tokenizer.json").read_bytes())
    except (OSError, ValueError):
        return None
    return [values.get(part) for part in _TOKENISING] if isinstance(values, dict) else None
