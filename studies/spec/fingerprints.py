"""The digest of all that changes a study's results."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from studies.files.paths import without_folder

# Fields that studies have not always had, each with the values that it stands for without it:
# studies from before it existed keep their digest.
_ADDED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("sampler", ("tpe",)),
    ("pruner", ("asha",)),
    ("document_separator", ("auto", "eos")),
    ("train_blocks", (None,)),
    ("epochs", (None,)),
    ("seed_list", ([],)),
    ("designs", ({},)),
    ("start", ([],)),
    ("gradient_checkpointing", (False,)),
    ("device_map", ("none",)),
)


def fingerprint(values: Mapping[str, Any], left_out: Collection[str]) -> str:
    """Return the digest of a study's plain values.

    Args:
        values: the study, from :meth:`studies.spec.study.Study.to_dict`.
        left_out: fields that no result depends on, or that may grow.
    """
    kept = {k: v for k, v in values.items() if k not in left_out}
    for key, earlier in _ADDED:
        if kept[key] in earlier:
            del kept[key]
    for key in ("model", "data"):
        # The digest does not depend on the folder; the content has a fingerprint of its own.
        kept[key] = without_folder(kept[key])
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
