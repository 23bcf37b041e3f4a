"""Group the files of a folder into splits, by the same keywords in names as `datasets`."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hylorada.errors import InputError

SPLITS = ("train", "validation", "test")
COMPRESSIONS = (".bz2", ".gz", ".xz", ".zst")
SUFFIXES = (".csv", ".jsonl", ".parquet", ".tsv", ".txt")

# Files with these suffixes may hold text, but hylorada does not read them.
_NOT_READ = (
    *(".7z", ".arrow", ".bin", ".feather", ".json", ".ndjson", ".npy", ".orc", ".raw", ".tar"),
    *(".text", ".tgz", ".tokens", ".xml", ".zip", *COMPRESSIONS),
)
_ABOUT = re.compile(r"(readme|licen[cs]e|copying|notice)\b", re.IGNORECASE)
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}")
_GLUED = ("corpus", "data", "file", "files", "s", "set", "split", "text")
_ABBREVIATIONS = {"trn": "train", "tst": "test"}
_EVALS, _TESTS = {"eval", "evaluation"}, {"test", "testing"}
_SHORTEST_MISSPELT = 4  # letters; "val" and "dev" are too close to other words
_MOST_NAMED = 3  # files, in a message


@dataclass(frozen=True)
class Layout:
    """The text files of a folder.

    Attributes:
        files: the files of each split in reading order; under "" if no name contains a split's.
        left_out: names of files that describe the data (README.txt).
    """

    files: dict[str, list[Path]]
    left_out: tuple[str, ...] = ()


def kind_of(name: str) -> tuple[str, str]:
    """Return the lower-case suffixes of a file's format and of its compression ("" for none)."""
    stem, suffix = os.path.splitext(name.lower())
    if suffix not in COMPRESSIONS:
        return suffix, ""
    return os.path.splitext(stem)[1], suffix


def supported() -> str:
    """Return the clause that lists the supported formats."""
    return f"one of: {', '.join(SUFFIXES)} (each may be compressed: {', '.join(COMPRESSIONS)})"


def splits_named(name: str) -> set[str]:
    """Return the splits that a file or folder is named after.

    The keywords and separators are those of `datasets`.
    """
    from datasets.data_files import NON_WORDS_CHARS, SPLIT_KEYWORDS

    # This matches the patterns of `datasets`, "{keyword}[{sep}]*" and "*[{sep}]{keyword}[{sep}]*",
    # except that case does not matter.
    words = set(re.split(f"[{NON_WORDS_CHARS}]", name.lower()))
    return {str(split) for split, keywords in SPLIT_KEYWORDS.items() if words & set(keywords)}


def keywords() -> str:
    """Return the clause that lists the keywords that assign a file to a split."""
    from datasets.data_files import SPLIT_KEYWORDS

    listed = (
        f"{split} ({', '.join(k for k in words if k != str(split))})"
        for split, words in SPLIT_KEYWORDS.items()
    )
    return ", ".join(listed)


def find_splits(folder: Path) -> Layout:
    """Group the files of a folder and its subfolders by split.

    Hidden files and folders are left out, and links are followed.

    Raises:
        InputError: no file can be read, or the names don't say which split a file belongs to.
    """
    relative = sorted(path.relative_to(folder) for path in _walk(folder, frozenset()))
    readable = [path for path in relative if kind_of(path.name)[0] in SUFFIXES]
    about = [
        path for path in readable if kind_of(path.name)[0] == ".txt" and _ABOUT.match(path.name)
    ]
    readable = [path for path in readable if path not in about]
    if not readable:
        raise InputError(f"data {str(folder)!r}: no files; supported: {supported()}")
    labels = {path: _label(path) for path in readable}
    not_read = [path for path in relative if path not in labels and path not in about]
    if problems := _problems(labels, not_read):
        raise InputError([f"data {str(folder)!r}: {problem}" for problem in problems])
    files: dict[str, list[Path]] = {}
    for path, (split, *_) in labels.items():
        files.setdefault(split, []).append(folder / path)
    _check_links(folder, files)
    return Layout(files, tuple(map(str, about)))


def _walk(folder: Path, above: frozenset[str]) -> Iterator[Path]:
    """Yield all files that are not hidden; a link to a folder above itself is not followed.

    Raises:
        InputError: a folder can't be read, or a link that may be a split is broken.
    """
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise InputError(f"data {str(folder)!r}: can't be read: {error.strerror}") from error
    for name in names:
        path = folder / name
        if name.startswith("."):
            continue
        if os.path.isdir(path):
            if not name.startswith("__"):  # `datasets` skips __pycache__ and __MACOSX, too
                yield from _walk(path, above | {real})
        elif os.path.isfile(path):
            yield path
        elif os.path.islink(path) and (kind_of(name)[0] in SUFFIXES or splits_named(name)):
            raise InputError(
                f"data {str(folder)!r}: {name!r} is a link to {os.readlink(path)!r}, "
                "which can't be followed; fetch that file, or remove the link"
            )


def _label(path: Path) -> tuple[str, ...]:
    """Return the splits that a path is named after, ("",) for none."""
    return tuple(sorted(set[str]().union(*map(splits_named, path.parts)))) or ("",)


def _problems(labels: Mapping[Path, tuple[str, ...]], not_read: Iterable[Path]) -> list[str]:
    """List the reasons why names don't say which split a file belongs to."""
    ambiguous = [path for path, splits in labels.items() if len(splits) > 1]
    problems = [
        f"{str(path)!r} is named after {' and '.join(labels[path])}; rename it"
        for path in ambiguous[:_MOST_NAMED]
    ]
    lost = [p for p in not_read if p.suffix.lower() in _NOT_READ and _label(p) != ("",)]
    problems += [
        f"{str(path)!r} is named after {_label(path)[0]!r}, but {path.suffix!r} is not supported; "
        f"{supported()}"
        for path in lost[:_MOST_NAMED]
    ]
    return problems + _unnamed_problems(labels) + _duplicates(labels) + _eval_beside_test(labels)


def _unnamed_problems(labels: Mapping[Path, tuple[str, ...]]) -> list[str]:
    named = sorted({split for splits in labels.values() for split in splits if split})
    unnamed = [path for path, splits in labels.items() if splits == ("",)]
    if misspelt := _misspelt(unnamed):
        return [
            f"{str(path)!r} looks like the {split} split, but is not named so; "
            f"the words are: {keywords()}"
            for path, split in list(misspelt.items())[:_MOST_NAMED]
        ]
    if named and unnamed:
        verb = "belongs" if len(unnamed) == 1 else "belong"
        return [
            f"{_listed(unnamed)} {verb} to no split, while other files are named after "
            f"{', '.join(named)}; move it away, or name it after one: {keywords()}"
        ]
    shards = sorted({match[1] for path in unnamed if (match := _SHARD.match(path.name))})
    if len(shards) > 1:
        return [
            f"it has the splits {', '.join(map(repr, shards))}; must be named after {keywords()}"
        ]
    return []


def _duplicates(paths: Iterable[Path]) -> list[str]:
    """List files that exist in two forms, such as compressed and not: both would be read."""
    forms: dict[Path, list[str]] = {}
    for path in paths:
        packed = kind_of(path.name)[1]
        forms.setdefault(path.with_suffix("") if packed else path, []).append(repr(str(path)))
    return [
        f"{' and '.join(names)} are the same file; move one away"
        for names in forms.values()
        if len(names) > 1
    ]


def _eval_beside_test(labels: Iterable[Path]) -> list[str]:
    """Refuse "eval" beside "test": both are the test split to `datasets`.

    A user who has both means the validation split by "eval".
    """
    words = {path: set(re.split("[^a-z]", str(path).lower())) for path in labels}
    evals = [path for path, names in words.items() if names & _EVALS and not names & _TESTS]
    tests = [path for path, names in words.items() if names & _TESTS and not names & _EVALS]
    if not evals or not tests:
        return []
    return [
        f"{str(evals[0])!r} and {str(tests[0])!r} both name the test split; "
        "rename one to validation or test"
    ]


def _misspelt(paths: Iterable[Path]) -> dict[Path, str]:
    """Return the files whose names are nearly those of a split, with the split."""
    misspelt: dict[Path, str] = {}
    glued: dict[Path, str] = {}
    for path in paths:
        for word in _words(path):
            if split := _closest_split(word):
                misspelt[path] = split
            if split := _suffix_split(word):
                glued[path] = split
    # "mytrain" beside "mytest" are splits; "latest" alone is not.
    return {**misspelt, **(glued if len(set(glued.values())) > 1 else {})}


def _words(path: Path) -> list[str]:
    return [
        word
        for part in path.parts
        for word in re.split("[^a-z]", part.lower().split(".")[0])
        if word
    ]


def _closest_split(word: str) -> str | None:
    """Return the split whose keyword a word misspells or extends, such as "trian" or "trainset"."""
    from datasets.data_files import SPLIT_KEYWORDS

    if word in _ABBREVIATIONS:
        return _ABBREVIATIONS[word]
    for split, known in SPLIT_KEYWORDS.items():
        for keyword in known:
            if word.startswith(keyword) and word[len(keyword) :] in _GLUED:
                return str(split)
            if (
                len(keyword) >= _SHORTEST_MISSPELT
                and word[0] == keyword[0]
                and _is_slip(word, keyword)
            ):
                return str(split)
    return None


def _is_slip(word: str, keyword: str) -> bool:
    """Return whether a letter is missing or added, or two neighbours are swapped.

    A replaced letter does not count: it usually makes another word ("test", "text").
    """
    if len(word) == len(keyword):
        differing = [i for i, (a, b) in enumerate(zip(word, keyword, strict=True)) if a != b]
        return (
            len(differing) == 2
            and sorted(word) == sorted(keyword)
            and differing[1] - differing[0] == 1
        )
    longer, shorter = sorted((word, keyword), key=len, reverse=True)
    if len(longer) - len(shorter) != 1:
        return False
    last = len(longer) - (longer == keyword)  # a missing last letter is no slip: "eva" is a name
    return any(longer[:i] + longer[i + 1 :] == shorter for i in range(last))


def _suffix_split(word: str) -> str | None:
    """Return the split whose keyword a word ends in, such as "mytrain"."""
    from datasets.data_files import SPLIT_KEYWORDS

    return next(
        (str(s) for s, known in SPLIT_KEYWORDS.items() if word.endswith(tuple(known))), None
    )


def _check_links(folder: Path, files: Mapping[str, Iterable[Path]]) -> None:
    """Refuse a file that a link puts into two splits.

    Raises:
        InputError: there is such a file.
    """
    seen: dict[str, tuple[str, Path]] = {}
    for split, paths in files.items():
        for path in paths:
            other, first = seen.setdefault(os.path.realpath(path), (split, path))
            if other != split:
                names = " and ".join(repr(str(p.relative_to(folder))) for p in (first, path))
                raise InputError(
                    f"data {str(folder)!r}: {names} are the same file, "
                    f"of splits {other} and {split}"
                )


def _listed(paths: list[Path]) -> str:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(repr(str(path)) for path in paths[:_MOST_NAMED]) + more
