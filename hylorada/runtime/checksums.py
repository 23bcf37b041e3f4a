"""Checksums that reveal a flipped bit or a swapped file among the numbers behind a result."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SEAL = "seal"  # the field of a JSON file that holds its checksum


def digest(content: bytes | str, after: str = "") -> str:
    """Return a short checksum of some content and of its predecessor or owner.

    Args:
        content: bytes, or text of any length.
        after: the digest of the content before it, or the owner's name.
    """
    content = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return hashlib.sha256(after.encode("utf-8", "surrogatepass") + b"\n" + content).hexdigest()[:16]


def sealed(values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return JSON values with a checksum over them and the name of their owner."""
    return {**values, SEAL: _checksum(values, owner)}


def unsealed(values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return JSON values without their checksum, after checking it.

    Files of earlier versions have no checksum and are accepted.

    Raises:
        ValueError: the checksum belongs to other values or to another owner.
    """
    kept = {name: value for name, value in values.items() if name != SEAL}
    if SEAL in values and values[SEAL] != _checksum(kept, owner):
        raise ValueError("its checksum does not match its content")
    return kept


def _checksum(values: Mapping[str, Any], owner: str) -> str:
    return digest(json.dumps(values, sort_keys=True), owner)
