"""Documents and splits of every kind of source."""

import hashlib
import json
import time
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from hylorada.data.text import load_text
from hylorada.errors import InputError


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def _lengths(splits: dict[str, tuple[str, ...]]) -> list[int]:
    return [sum(map(len, splits[name])) for name in ("train", "validation", "test")]


def test_pydocs_is_cut_without_loss_or_repetition() -> None:
    text = load_text("pydocs")
    whole = "".join(topics[name] for name in sorted(topics))
    assert "".join("".join(text.splits[name]) for name in ("train", "validation", "test")) == whole
    assert _lengths(text.splits)[0] == pytest.approx(0.8 * len(whole), abs=2)
    assert _lengths(text.splits)[1] == pytest.approx(0.1 * len(whole), abs=2)
    assert text.splits["train"][0] == topics[min(topics)]


def test_text_file_is_cut_by_characters(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_bytes("0123456789é😀\r\nabcdef".encode())
    splits = load_text(str(path)).splits
    assert splits == {"train": ("0123456789é😀\r\nab",), "validation": ("cd",), "test": ("ef",)}


def test_cut_leaves_no_blank_piece_of_a_document(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("a" * 78 + " " * 6 + "b" * 6 + "c" * 10)
    splits = load_text(str(path)).splits
    assert _lengths(splits) == [80, 10, 10]
    (tmp_path / "two.jsonl").write_text(
        "\n".join(json.dumps({"text": t}) for t in ("a" * 78 + " " * 5, "b" * 17))
    )
    assert load_text(str(tmp_path / "two.jsonl")).splits["train"] == ("a" * 78 + " " * 5,)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_table_rows_are_documents(tmp_path: Path, suffix: str) -> None:
    import datasets

    rows = datasets.Dataset.from_dict(
        {"id": list(range(5)), "body": ["one", None, "two", None, "three" * 9]}
    )
    path = tmp_path / f"rows{suffix}"
    {".jsonl": rows.to_json, ".csv": rows.to_csv, ".parquet": rows.to_parquet}[suffix](str(path))
    splits = load_text(str(path)).splits
    assert splits["train"][:2] == ("one", "two")
    assert "".join(sum(splits.values(), ())) == "onetwo" + "three" * 9
    assert load_text(str(path), text_column="body").splits == splits


def test_text_column_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"title": "a", "story": "b", "year": 3}))
    with pytest.raises(
        InputError, match=r"title .string, such as 'a'., story .string, such as 'b'., year .int"
    ):
        load_text(str(path))
    with pytest.raises(InputError, match=r"text_column 'stroy' is not in .*; did you mean 'story'"):
        load_text(str(path), text_column="stroy")
    with pytest.raises(InputError, match="holds int, not text"):
        load_text(str(path), text_column="year")
    with pytest.raises(InputError, match="has no columns"):
        load_text("pydocs", text_column="text")


def test_folder_with_split_files_keeps_them(tmp_path: Path) -> None:
    for name, content in {"train": "x" * 50, "dev": "y", "test": "z", "README": "no"}.items():
        (tmp_path / f"{name}.txt").write_text(content)
    splits = load_text(str(tmp_path)).splits
    assert splits == {"train": ("x" * 50,), "validation": ("y",), "test": ("z",)}


def test_folder_that_lacks_splits_cuts_them_off_train(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("x" * 90 + "y" * 10)
    (tmp_path / "valid.txt").write_text("v")
    assert load_text(str(tmp_path)).splits == {
        "train": ("x" * 90,),
        "validation": ("v",),
        "test": ("y" * 10,),
    }


def test_folder_of_other_files_is_joined_in_order_and_cut(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.txt").write_text("2" * 50)
    (tmp_path / "a.txt").write_text("1" * 50)
    (tmp_path / "picture.png").write_bytes(b"\xff")
    splits = load_text(str(tmp_path)).splits
    assert splits == {"train": ("1" * 50, "2" * 30), "validation": ("2" * 10,), "test": ("2" * 10,)}


def test_fingerprint_follows_contents_only(tmp_path: Path) -> None:
    for name, content in {"a": "x" * 50, "b": "x" * 50, "c": "x" * 49 + "y"}.items():
        (tmp_path / f"{name}.txt").write_text(content)
    one, same, other = (load_text(str(tmp_path / f"{name}.txt")).fingerprint for name in "abc")
    expected = "".join(
        f"{s} 1\n{n}\n{'x' * n}" for s, n in (("train", 40), ("validation", 5), ("test", 5))
    )
    assert one == same == hashlib.sha256(expected.encode()).hexdigest()[:16]
    assert other != one


def test_bytes_that_are_not_utf8_are_located(tmp_path: Path) -> None:
    for name in ("bad.txt", "bad.csv"):
        (tmp_path / name).write_bytes(b"caf\xe9 au lait")
        with pytest.raises(InputError, match=f"{name}': byte 3 is not UTF-8"):
            load_text(str(tmp_path / name))


def test_unusable_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "book.pdf").write_text("x")
    (tmp_path / "broken.jsonl").write_text('{"text": ')
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="split 'validation' is empty"):
        load_text(str(tmp_path / "blank.txt"))
    with pytest.raises(
        InputError, match=r"suffix '\.pdf' is not supported; one of: \.csv, \.jsonl"
    ):
        load_text(str(tmp_path / "book.pdf"))
    with pytest.raises(
        InputError, match=r"broken\.jsonl': line 1 is not JSON: Expecting value at column 10"
    ):
        load_text(str(tmp_path / "broken.jsonl"))
    with pytest.raises(InputError, match="no files; supported"):
        load_text(str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"no such file or folder; did you mean 'blank\.txt'"):
        load_text(str(tmp_path / "blanc.txt"))


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "one.txt").write_text("x" * 20)
    assert _lengths(load_text("~/one.txt").splits) == [16, 2, 2]


@pytest.mark.usefixtures("offline")
def test_hub_without_network_fails_fast_in_one_line() -> None:
    start = time.monotonic()
    with pytest.raises(InputError, match=r"data 'pydoc': .*did you mean 'pydocs'"):
        load_text("pydoc")
    with pytest.raises(
        InputError, match=r"no-such/set:small.*load_dataset\('no-such/set', 'small'\)"
    ) as caught:
        load_text("no-such/set:small")
    assert len(caught.value.problems) == 1
    assert "\n" not in caught.value.problems[0]
    assert (
        time.monotonic() - start < 30
    )  # retries of the library would take 23 s each; the limit includes imports on a cold machine


def test_wikitext_splits_are_read_whole() -> None:
    folder = Path(__file__).parents[4] / "shared" / "data" / "wikitext-2"
    if not folder.is_dir():
        pytest.skip("needs shared/data")
    text = load_text(str(folder))
    for name, documents in text.splits.items():
        assert documents == ((folder / f"{name}.txt").read_bytes().decode(),)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('{"text": "a"}\n[1]\n', "line 2 must be a JSON object, got list"),
        (
            '{"text": "a"}\n\n{"text": "a"\n',
            "line 3 is not JSON: Expecting ',' delimiter at column 13",
        ),
        ('{"text": "\\ud800"}', r"line 1 holds '\\ud800', an unpaired surrogate"),
        ('{"text": 1}\n{"text": "a"}', r"columns: text \(int and string, such as '1'\)"),
        ('{"n": ' + "9" * 5000 + "}", "line 1 can't be read: Exceeds the limit"),
        ("[" * 100_000, "line 1 can't be read: maximum recursion depth exceeded"),
    ],
)
def test_broken_json_lines_are_refused_by_number(tmp_path: Path, lines: str, problem: str) -> None:
    (tmp_path / "a.jsonl").write_text(lines)
    with pytest.raises(InputError, match=problem):
        load_text(str(tmp_path / "a.jsonl"))


def test_json_lines_may_hold_what_python_takes_for_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "one\u2028two\x85"}\r\n\r\n{"text": null}\n{"text": "\\ud83d\\ude00 é"}'
    )
    assert (
        "".join(sum(load_text(str(tmp_path / "a.jsonl")).splits.values(), ()))
        == "one\u2028two\x85😀 é"
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_without_rows_are_empty(
    tmp_path: Path, suffix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["a"]}).select([])
    {".csv": rows.to_csv, ".parquet": rows.to_parquet}[suffix](str(tmp_path / f"a{suffix}"))
    capfd.readouterr()
    with pytest.raises(InputError, match="split 'train' is empty"):
        load_text(str(tmp_path / f"a{suffix}"))
    assert capfd.readouterr().err == ""  # `datasets` would log its error


def test_links_in_circles_and_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "a.txt").write_text("x" * 50)
    assert _lengths(load_text(str(tmp_path)).splits) == [40, 5, 5]
    (tmp_path / "self.txt").symlink_to(tmp_path / "self.txt")
    for place in (tmp_path, tmp_path / "self.txt"):
        with pytest.raises(
            InputError, match=r"is a link to '.*self\.txt', which can't be followed"
        ):
            load_text(str(place))
    (tmp_path / "self.txt").unlink()
    (tmp_path / "b.txt").symlink_to(
        "/proc/self/mem"
    )  # nobody can read its beginning, not even root
    with pytest.raises(InputError, match=r"b\.txt': can't be read: "):
        load_text(str(tmp_path / "b.txt"))


def test_nul_characters_are_refused(tmp_path: Path) -> None:
    (tmp_path / "zeros.txt").write_bytes(b"ab" + bytes(300))
    with pytest.raises(
        InputError, match=r"zeros\.txt': holds NUL characters \(first at 2\): not a text file"
    ):
        load_text(str(tmp_path / "zeros.txt"))
