"""The splits of a folder: its files grouped by the names that `datasets` gives a meaning to."""

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
_NOT_READ = frozenset(
    (
        *(
            ".7z",
            ".arrow",
            ".bin",
            ".feather",
            ".json",
            ".ndjson",
            ".npy",
            ".orc",
            ".raw",
            ".tar",
            ".text",
            ".tgz",
        ),
        *(".tokens", ".xml", ".zip", *COMPRESSIONS),
    )
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
        files: by split, in reading order; under "" where no name says a split.
        left_out: names of files that describe the data (README.txt).
    """

    files: dict[str, list[Path]]
    left_out: tuple[str, ...] = ()


def kind_of(name: str) -> tuple[str, str]:
    """Return the suffixes of a file's name in lower case: of its format and of its compression ("" for none)."""
    stem, suffix = os.path.splitext(name.lower())
    if suffix not in COMPRESSIONS:
        return suffix, ""
    return os.path.splitext(stem)[1], suffix


def supported() -> str:
    """Return the clause that lists what can be read."""
    return f"one of: {', '.join(SUFFIXES)} (each may be compressed: {', '.join(COMPRESSIONS)})"


def splits_named(name: str) -> set[str]:
    """Return the splits that a file or folder is named after, by the keywords and separators of `datasets`."""
    from datasets.data_files import NON_WORDS_CHARS, SPLIT_KEYWORDS

    # As in its own patterns "{keyword}[{sep}]*" and "*[{sep}]{keyword}[{sep}]*", but in any case of letters.
    words = set(re.split(f"[{NON_WORDS_CHARS}]", name.lower()))
    return {str(split) for split, keywords in SPLIT_KEYWORDS.items() if words & set(keywords)}


def keywords() -> str:
    """Return the clause that lists the words by which a file belongs to a split."""
    from datasets.data_files import SPLIT_KEYWORDS

    listed = (
        f"{split} ({', '.join(k for k in words if k != str(split))})"
        for split, words in SPLIT_KEYWORDS.items()
    )
    return ", ".join(listed)


def find_splits(folder: Path) -> Layout:
    """Group the files of a folder and its subfolders by split.

    Hidden files and folders are left out, links are followed.

    Raises:
        InputError: no file can be read, or names leave open which split a file belongs to.
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
    """Return all files that are not hidden; a link to a folder that contains it is not followed.

    Raises:
        InputError: a folder can't be read, or what may be a split is a link that leads nowhere.
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
            if not name.startswith("__"):  # __pycache__, __MACOSX: as `datasets` has it
                yield from _walk(path, above | {real})
        elif os.path.isfile(path):
            yield path
        elif os.path.islink(path) and (kind_of(name)[0] in SUFFIXES or splits_named(name)):
            lost = f"{name!r} is a link to {os.readlink(path)!r}, which can't be followed"
            raise InputError(f"data {str(folder)!r}: {lost}; fetch that file, or remove the link")


def _label(path: Path) -> tuple[str, ...]:
    """The splits that a path is named after, ("",) for none."""
    return tuple(sorted(set[str]().union(*map(splits_named, path.parts)))) or ("",)


def _problems(labels: Mapping[Path, tuple[str, ...]], not_read: Iterable[Path]) -> list[str]:
    """What the names leave open."""
    several = [p for p, found in labels.items() if len(found) > 1]
    named = sorted({split for found in labels.values() for split in found if split})
    unnamed = [path for path, found in labels.items() if found == ("",)]
    problems = [
        f"{str(p)!r} is named after {' and '.join(labels[p])}; rename it"
        for p in several[:_MOST_NAMED]
    ]
    problems += [
        f"{str(path)!r} is named after {_label(path)[0]!r}, but {path.suffix!r} is not supported; {supported()}"
        for path in [p for p in not_read if p.suffix.lower() in _NOT_READ and _label(p) != ("",)][
            :_MOST_NAMED
        ]
    ]
    if misspelt := _misspelt(unnamed):
        problems += [
            f"{str(path)!r} looks like the {split} split, but is not named so; the words are: {keywords()}"
            for path, split in list(misspelt.items())[:_MOST_NAMED]
        ]
    elif named and unnamed:
        verb = "belongs" if len(unnamed) == 1 else "belong"
        problems.append(
            f"{_some(unnamed)} {verb} to no split, while other files are named after {', '.join(named)}; "
            f"move it away, or name it after one: {keywords()}"
        )
    elif len(others := sorted({m[1] for p in unnamed if (m := _SHARD.match(p.name))})) > 1:
        problems.append(
            f"it has the splits {', '.join(map(repr, others))}; must be named after {keywords()}"
        )
    return problems + _twice(labels) + _eval_beside_test(labels)


def _twice(paths: Iterable[Path]) -> list[str]:
    """Name files that are there in two forms, such as compressed and not: their text would be read twice."""
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
    """Whoever has both means the validation split by the first; to `datasets` both are the test split."""
    words = {path: set(re.split("[^a-z]", str(path).lower())) for path in labels}
    evals = [path for path, found in words.items() if found & _EVALS and not found & _TESTS]
    tests = [path for path, found in words.items() if found & _TESTS and not found & _EVALS]
    if not evals or not tests:
        return []
    return [
        f"{str(evals[0])!r} and {str(tests[0])!r} both name the test split; rename one to validation or test"
    ]


def _misspelt(paths: Iterable[Path]) -> dict[Path, str]:
    """Files whose names are nearly those of a split, with the split."""
    paths = list(paths)
    near = {path: split for path in paths for word in _words(path) if (split := _nearly(word))}
    # "mytrain" and "mytest" are splits; a lone "latest" is not.
    glued = {path: split for path in paths for word in _words(path) if (split := _ends_as(word))}
    return {**near, **(glued if len(set(glued.values())) > 1 else {})}


def _words(path: Path) -> list[str]:
    return [
        word
        for part in path.parts
        for word in re.split("[^a-z]", part.lower().split(".")[0])
        if word
    ]


def _nearly(word: str) -> str | None:
    """The split whose keyword a word is but for one letter lost, added or swapped, or for a "set" behind it."""
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
    """Whether one letter is lost or added, or two neighbours are swapped; another letter makes another word (text)."""
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
    last = len(longer) - (longer == keyword)  # "eva" is a name
    return any(longer[:i] + longer[i + 1 :] == shorter for i in range(last))


def _ends_as(word: str) -> str | None:
    from datasets.data_files import SPLIT_KEYWORDS

    return next(
        (str(s) for s, known in SPLIT_KEYWORDS.items() if word.endswith(tuple(known))), None
    )


def _check_links(folder: Path, files: Mapping[str, Iterable[Path]]) -> None:
    """Refuse a file that is in two splits by way of a link."""
    seen: dict[str, tuple[str, Path]] = {}
    for split, paths in files.items():
        for path in paths:
            other, first = seen.setdefault(os.path.realpath(path), (split, path))
            if other != split:
                names = " and ".join(repr(str(p.relative_to(folder))) for p in (first, path))
                raise InputError(
                    f"data {str(folder)!r}: {names} are the same file, of splits {other} and {split}"
                )


def _some(paths: list[Path]) -> str:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(repr(str(path)) for path in paths[:_MOST_NAMED]) + more
