"""Base and text of a benchmark, loaded in the same way by each of its processes."""

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from hylorada import SPLITS, Blocks, build_blocks, load_text, load_tokenizer
from studies.bench.options import Plan, Setting
from studies.bench.shapes import shape_config, write_shape

_RANDOM_BLOCKS = 256
_EVAL_BLOCKS = 12  # validation blocks of a report, as in the built-in study


@contextmanager
def base_on_disk(plan: Plan) -> Iterator[Plan]:
    """Yield the plan with a base on disk; random weights get a folder removed after the context."""
    if plan.setting.shape is None:
        yield plan
        return
    folder = Path(tempfile.mkdtemp(prefix="hylorada-bench-"))
    try:
        write_shape(plan.setting.shape, plan.setting.dtype, folder)
        yield dataclasses.replace(plan, setting=dataclasses.replace(plan.setting, base=str(folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load_blocks(setting: Setting) -> Mapping[str, Blocks]:
    """Return the blocks of each split, with validation and test cut to what a report reads."""
    if setting.shape is not None:
        return {split: _random_blocks(setting, split) for split in SPLITS}
    tokenizer = load_tokenizer(setting.base)
    text = load_text(setting.data, tokenizer=tokenizer)
    splits = {
        s: build_blocks(text.splits[s], tokenizer, setting.block_size, split=s) for s in SPLITS
    }
    return {
        s: b if s == "train" else b.head(min(_EVAL_BLOCKS, b.num_blocks)) for s, b in splits.items()
    }


def _random_blocks(setting: Setting, split: str) -> Blocks:
    assert setting.shape is not None
    count = _RANDOM_BLOCKS if split == "train" else _EVAL_BLOCKS
    vocabulary = shape_config(setting.shape).vocab_size
    stream = np.random.default_rng(SPLITS.index(split))
    input_ids = stream.integers(0, vocabulary, (count, setting.block_size), dtype=np.int32)
    # Random tokens have no text, so each counts as a byte.
    num_bytes = np.full(count, setting.block_size - 1)
    return Blocks(input_ids, num_bytes, dropped_tokens=0, fingerprint="random")
