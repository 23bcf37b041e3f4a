"""Read data sets of the Hugging Face hub into rows by split."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hylorada.base_models.builtin_names import TEXTS
from hylorada.base_models.error_texts import first_line, is_gated
from hylorada.base_models.finding import hub_is_reachable
from hylorada.data.columns import Rows, Table, read_texts
from hylorada.data.splits import splits_named
from hylorada.errors import InputError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


def read_hub(
    data: str, text_column: str | None, tokenizer: "PreTrainedTokenizerBase | None"
) -> tuple[dict[str, list[Rows]], tuple[str, ...], str | None]:
    """Read a data set `name` or `name:config`.

    Returns:
        Rows by split; the names of splits that are neither training, validation nor test and are
        left out; and the commit, if known.

    Raises:
        InputError: the data set can't be found or read, or its text column is unclear.
    """
    import datasets

    name, _, config = data.partition(":")
    # For these names `datasets` would read the files of the working folder, or of that folder.
    if name in datasets.packaged_modules._PACKAGED_DATASETS_MODULES or os.path.isdir(name):
        raise InputError(
            f"data {data!r}: {name!r} is not a data set of the hub; "
            "name a folder or a file by its path"
        )
    offline = not hub_is_reachable()
    with _quiet_datasets(offline):
        try:
            splits = datasets.load_dataset(name, config or None)
        except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
            raise InputError(_hub_problem(data, error, offline)) from error
    rows, left_out = rows_by_split(data, splits, text_column, tokenizer)
    # The addresses of the downloaded files contain the commit: hf://datasets/NAME@COMMIT/...
    addresses = next(iter(splits.values())).info.download_checksums or {}
    commit = re.search(r"@([0-9a-f]{40})/", " ".join(addresses))
    return rows, left_out, commit[1] if commit else None


def rows_by_split(
    data: str,
    splits: Mapping[str, Any],
    text_column: str | None,
    tokenizer: "PreTrainedTokenizerBase | None",
) -> tuple[dict[str, list[Rows]], tuple[str, ...]]:
    """Group the splits that `load_dataset` returns by training, validation and test.

    A single split of another name is one text, under "".

    Returns:
        Rows by split, and the names of the splits that are left out.
    """
    labels = {name: splits_named(name) for name in splits}
    taken = {name: min(split) for name, split in labels.items() if len(split) == 1}
    if len(splits) == 1 and not taken:
        taken = dict.fromkeys(splits, "")
    rows: dict[str, list[Rows]] = {}
    for name, split in taken.items():
        table = _table(data, splits[name])
        texts = read_texts(table, text_column, tokenizer)
        rows.setdefault(split, []).append(replace(texts, source=f"split {name!r}"))
    return rows, tuple(name for name in splits if name not in taken)


def _table(data: str, rows: Any) -> Table:
    types = {
        name: getattr(feature, "dtype", type(feature).__name__.lower())
        for name, feature in rows.features.items()
    }
    return Table(data, types, lambda column: list(rows[column]))


def _hub_problem(data: str, error: BaseException, offline: bool) -> str:
    name, _, config = data.partition(":")
    if is_gated(error):
        return f"data {data!r}: access to {name} needs approval and a token"
    if (hint := nearest(data, TEXTS)).startswith("did you mean"):
        return f"data {data!r}: no file, no folder and no hub data set; {hint}"
    if offline:
        names = f"{name!r}, {config!r}" if config else repr(name)
        fetch = f'python -c "from datasets import load_dataset; load_dataset({names})"'
        return (
            f"data {data!r}: no file or folder, the hub can't be reached, no copy is cached; "
            f"fetch it with: {fetch}"
        )
    return f"data {data!r}: {first_line(error)}"


@contextlib.contextmanager
def _quiet_datasets(offline: bool) -> Iterator[None]:
    """Silence `datasets`, and with `offline` keep it off the network, whose retries take 23 s."""
    import datasets
    from huggingface_hub import constants

    before = (
        datasets.config.HF_HUB_OFFLINE,
        constants.HF_HUB_OFFLINE,
        datasets.are_progress_bars_disabled(),
    )
    level = datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    # the errors themselves contain the messages that it logs
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if offline:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before[:2]
        datasets.logging.set_verbosity(level)
        if not before[2]:
            datasets.enable_progress_bars()
