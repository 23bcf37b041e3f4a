"""The inputs of a study and their checks, before any compute and before anything is written."""

import dataclasses
import math
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hylorada import InputError
from hylorada.data.separators import DOCUMENT_SEPARATORS
from studies.files.own_designs import own_designs, source_digests
from studies.files.paths import path_problem, unwritable
from studies.process.options import MOST_SEATS, Options
from studies.process.phases import phase
from studies.process.provenance import code_version, command_line, package_versions
from studies.runner.text_notes import budget_notes, count_tokens, text_facts, text_notes
from studies.spec.budgets import with_steps
from studies.spec.points import may_set, target_modules
from studies.spec.study import Study
from studies.tracking.services import service_for
from studies.trials.messages import LAST_SPLIT, split_for

# Key of the validation blocks for `explain`. If there are enough blocks that the search has not
# evaluated trials on, it holds only those.
EXPLAIN = LAST_SPLIT["explain"]
_PADS = {"replication_pads": True}
_FEWEST_UNSEEN = 20  # blocks; with fewer no correlation can be measured
_LONG = 1000  # characters per token; a text with more for each token of a block surely has a block


@dataclass(frozen=True)
class Material:
    """The checked inputs of a study: the tokenised text, and the identity of text and base.

    Attributes:
        blocks: blocks of each split; ``explain`` holds validation blocks for
            :mod:`studies.search.explain`.
        provenance: identity of text and base, and everything else that results depend on.
        separator: separator between documents.
        text_notes: lines for the user that describe what was read.
        test_documents: the document in which each test block begins; None if the text has none.
        unseen: which of the blocks for ``explain``, those of text and padded rows, no trial of the
            search is evaluated on.
    """

    blocks: Mapping[str, Any]
    provenance: Mapping[str, Any]
    separator: str = "eos"
    text_notes: Sequence[str] = ()
    test_documents: Any = None
    unseen: frozenset[str] = frozenset()

    def settled(self, study: Study) -> Study:
        """Return the study with all that the text decides, so that it resumes with it.

        The text decides which separator "auto" stands for, and how many steps epochs take.
        """
        study = dataclasses.replace(study, document_separator=self.separator)
        return with_steps(study, self.blocks["train"].num_blocks)

    def inputs(self) -> dict[str, str]:
        """Return the fingerprints of base and text, which a study folder is bound to."""
        return {
            k: str(v)
            for k, v in self.provenance.items()
            if k.endswith("_fingerprint") and not k.startswith("study") and v is not None
        }


@phase("checks, base and text")
def prepare(study: Study, options: Options, join: Callable[[], None] | None = None) -> Material:
    """Check everything that can be checked before any compute, and tokenise the text.

    Args:
        study: the study to run.
        options: where to run.
        join: joins a cluster and checks it, before the text's cache is written.

    Raises:
        InputError: there are problems; all are listed, and nothing has been written. Epochs whose
            steps don't fit are noticed last, when a long text's blocks are in the cache.
    """
    problems, base, tokenizer, text = _inputs(study.to_dict(), options)
    for design, source in own_designs(study.to_dict()).items():
        from hylorada import load_landmark_design  # slow to import

        _attempt(problems, load_landmark_design, design, source)
    if base is not None and (targets := target_modules(study)):
        from hylorada.base_models.loading import target_problems

        problems += target_problems(study.model, targets)
    if join is not None and not problems:
        join()
    whole: dict[str, Any] = {}
    if base is not None and tokenizer is not None and text is not None:
        whole = _blocks(problems, study, options, text, tokenizer, base.num_embeddings)
    if problems or base is None or text is None:
        raise InputError(problems)
    requested_separator, blocks = study.document_separator, _limited(study, whole)
    rows = _padded_rows(problems, study, text, tokenizer, base.num_embeddings)
    if rows and study.epochs is not None:
        problems.append(
            f"epochs {study.epochs}: arms with replication_pads read rows of another number than "
            "there are blocks; set defaults.max_steps instead"
        )
    if rows:
        blocks |= {split_for(s, _PADS): b for s, b in _limited(study, rows).items()}
    if problems:
        raise InputError(problems)
    train = blocks["train"]
    study = with_steps(
        dataclasses.replace(study, document_separator=text.separator), train.num_blocks
    )
    notes = text_notes(text, tokenizer, whole, requested_separator)
    facts = text_facts(text, tokenizer) | {f"{s}_tokens": count_tokens(b) for s, b in whole.items()}
    return Material(
        blocks,
        _provenance(study, base, text, blocks) | facts,
        text.separator,
        (*notes, *budget_notes(study, train, whole["train"].num_blocks)),
        _test_documents(study, whole["test"], tokenizer.eos_token_id),
        unseen=_unseen_names(study, whole, rows),
    )


def input_problems(values: Mapping[str, Any], options: Options) -> list[str]:
    """Return the problems of base, text and output locations, for a study with other problems."""
    return _inputs(values, options)[0]


def _inputs(values: Mapping[str, Any], options: Options) -> tuple[list[str], Any, Any, Any]:
    """Return problems, base, tokenizer and text.

    Fields of the study that are missing or of a wrong type are skipped; they are reported
    elsewhere.
    """
    problems = []
    if problem := path_problem(options.storage) or unwritable(options.storage):
        problems.append(f"storage {str(options.storage)!r} can't be written: {problem}")
    if options.tracking_uri is not None:
        uri, name = options.tracking_uri, values.get("name")
        service = service_for(uri)
        problems += service.check_address(uri) or (
            service.check_server(uri, name) if isinstance(name, str) else []
        )
    problems += _address_problems(options.address)
    if options.address is not None and values.get("device_map", "none") != "none":
        problems.append(
            f"device_map {values['device_map']!r} uses the GPUs of this machine; "
            "it can't be combined with --address"
        )
    if options.seats is not None and not 1 <= options.seats <= MOST_SEATS:
        limit = "least 1" if options.seats < 1 else f"most {MOST_SEATS}"
        problems.append(f"--pack-size must be at {limit}, got {options.seats}")
    problems += _limit_problems(options)
    base, tokenizer = _base(problems, values.get("model"), values.get("block_size"))
    return problems, base, tokenizer, _text(problems, values, tokenizer)


def _base(problems: list[str], model: Any, block_size: Any) -> tuple[Any, Any]:
    from hylorada import inspect_base, load_tokenizer

    if not isinstance(model, str):
        return None, None
    base = _attempt(problems, inspect_base, model)
    if base is None:
        return None, None
    if base.max_positions and isinstance(block_size, int) and block_size > base.max_positions:
        problems.append(
            f"block_size {block_size} exceeds model limit {base.max_positions} ({model})"
        )
    return base, _attempt(problems, load_tokenizer, model)


def _text(problems: list[str], values: Mapping[str, Any], tokenizer: Any) -> Any:
    from hylorada import load_text

    data, column, separator = (values.get(k) for k in ("data", "text_column", "document_separator"))
    if not isinstance(data, str) or not isinstance(column, str | None):
        return None
    known = separator if separator in DOCUMENT_SEPARATORS else "auto"  # others fail elsewhere
    return _attempt(
        problems, load_text, data, text_column=column, document_separator=known, tokenizer=tokenizer
    )


def _address_problems(address: str | None) -> list[str]:
    """Return the problems of a cluster's address, at which Ray itself would wait for minutes."""
    if address is None or address == "auto":
        return []
    if address.startswith("ray://"):
        remedy = "run on a node, with auto or HOST:6379"
        return [f"address {address!r}: Ray Client is not supported; {remedy}"]
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        return [f"address {address!r} must be auto or HOST:PORT"]
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: the name can't be looked up
        return [f"address {address!r} can't be reached: {error}"]
    return []


def _limit_problems(options: Options) -> list[str]:
    problems = []
    if options.time_limit is not None and not 0 < options.time_limit < math.inf:
        problems.append(f"--time-limit must be above 0 s, got {options.time_limit:g}")
    if options.max_failures is not None and options.max_failures < 0:
        problems.append(f"--max-failures must be at least 0, got {options.max_failures}")
    return problems


@phase("tokenizing")
def _blocks(
    problems: list[str],
    study: Study,
    options: Options,
    text: Any,
    tokenizer: Any,
    num_embeddings: int | None,
) -> dict[str, Any]:
    """Build all blocks of each split, those that may be too short before anything is written."""
    from hylorada import SPLITS, build_blocks

    long = {s for s in SPLITS if sum(map(len, text.splits[s])) > _LONG * study.block_size}
    blocks = {}
    build = partial(
        build_blocks,
        tokenizer=tokenizer,
        block_size=study.block_size,
        num_embeddings=num_embeddings,
    )
    for split in sorted(SPLITS, key=lambda s: (s in long, s == "train")):
        if problems and split in long:
            continue
        cache = options.storage / "cache" if split in long and split == "train" else None
        built = _attempt(problems, build, text.splits[split], split=split, cache_dir=cache)
        if built is not None and split == "test" and built.num_blocks < 2:
            problems.append(
                f"split 'test': 1 block of {study.block_size} tokens, the verdict needs 2; "
                "lower block_size or add text"
            )
        elif built is not None:
            blocks[split] = built
    return blocks


def _padded_rows(
    problems: list[str], study: Study, text: Any, tokenizer: Any, num_embeddings: int | None
) -> dict[str, Any]:
    """Build the padded rows of each split if any arm uses them; else return nothing."""
    if not may_set(study, "replication_pads"):
        return {}
    from hylorada.data.padded_rows import build_padded_rows

    build = partial(
        build_padded_rows,
        tokenizer=tokenizer,
        block_size=study.block_size,
        num_embeddings=num_embeddings,
    )
    rows = {s: _attempt(problems, build, d, split=s) for s, d in text.splits.items()}
    return {} if None in rows.values() else rows


def _test_documents(study: Study, test: Any, end_token: int | None) -> Any:
    """Return the document of each test block that the study uses, or None.

    Blocks of one document are not independent samples of the text.
    """
    if study.document_separator != "eos" or end_token is None:
        return None
    count = min(study.test_blocks or test.num_blocks, test.num_blocks)
    return test.documents(end_token)[test.places(count, spread=study.spread_test)]


def _limited(study: Study, blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the blocks that the study uses."""
    limits = {
        "train": study.train_blocks,
        "validation": study.eval_blocks,
        "test": study.test_blocks,
    }
    used = {}
    for split, whole in blocks.items():
        limit = limits.get(split)
        take = whole.spread if split == "test" and study.spread_test else whole.head
        used[split] = take(min(limit, whole.num_blocks) if limit else None)
    held = _unseen(study, blocks["validation"]) or blocks["validation"]
    used[EXPLAIN] = held.spread(min(study.test_blocks or held.num_blocks, held.num_blocks))
    return used


def _unseen(study: Study, validation: Any) -> Any:
    """Return the validation blocks that no trial of the search reads; None if they are too few."""
    rest = validation.after(study.eval_blocks) if study.eval_blocks else None
    return rest if rest is not None and rest.num_blocks >= _FEWEST_UNSEEN else None


def _unseen_names(
    study: Study, whole: Mapping[str, Any], rows: Mapping[str, Any]
) -> frozenset[str]:
    """Return the names of the blocks and rows for `explain` that no trial of the search reads."""
    kinds = {EXPLAIN: whole, split_for(EXPLAIN, _PADS): rows}
    return frozenset(
        name
        for name, splits in kinds.items()
        if splits and _unseen(study, splits["validation"]) is not None
    )


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
        **{f"{s}_blocks": b.num_blocks for s, b in blocks.items() if not s.startswith(EXPLAIN)},
        **{
            f"{s}_fingerprint": b.fingerprint
            for s, b in blocks.items()
            if not s.startswith(EXPLAIN)
        },
        "dtype": study.dtype,
        "seed": study.seed,
        "study_fingerprint": study.fingerprint(),
        **{f"design.{file}": sha for file, sha in source_digests(study.designs).items()},
    }
