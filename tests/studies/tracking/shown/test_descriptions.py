"""What MLflow's page shows of a whole study."""

import json
from typing import Any

from studies.tracking.shown.descriptions import EXPERIMENT_TAGS, inputs_of, linked, note_tags


def test_base_and_text_of_the_hub_have_its_addresses() -> None:
    provenance: dict[str, Any] = {
        "model": "gpt2",
        "model_fingerprint": "f" * 64,
        "model_revision": "abc",
    }
    provenance |= {"data": "wikitext:wikitext-2-raw-v1", "data_revision": "def"}
    provenance |= {"train_fingerprint": "1234", "train_blocks": 9}
    inputs = inputs_of(provenance)
    assert inputs.keys() == {"base", "train"}
    text, base = inputs["train"].dataset, inputs["base"].dataset
    assert (text.name, text.digest, text.source_type) == (
        provenance["data"],
        "1234",
        "hugging_face",
    )
    source = {"path": "wikitext", "config_name": "wikitext-2-raw-v1", "revision": "def"}
    assert json.loads(text.source) == source
    assert json.loads(text.profile or "") == {"num_rows": 9}
    assert (base.digest, base.source_type) == ("f" * 36, "http")
    assert json.loads(base.source) == {"url": "https://huggingface.co/gpt2/tree/abc"}
    bits = inputs_of({**provenance, "model": "gpt2 (4-bit nf4)"})["base"].dataset
    assert (bits.name, bits.source) == ("gpt2 (4-bit nf4)", base.source)


def test_local_base_and_text_are_named_as_the_user_named_them() -> None:
    provenance = {"model": "/bases/x", "model_fingerprint": "1", "model_revision": None}
    provenance |= {"data": "books/", "data_revision": None, "test_fingerprint": "2"}
    sources = {name: i.dataset for name, i in inputs_of(provenance).items()}
    assert {name: (d.source_type, json.loads(d.source)["uri"]) for name, d in sources.items()} == {
        "test": ("local", "books/"),
        "base": ("local", "/bases/x"),
    }


def test_description_is_replaced_only_where_it_is_ours() -> None:
    first = note_tags({}, "one")
    assert first["mlflow.note.content"] == "one"
    assert note_tags(first, "two")["mlflow.note.content"] == "two"
    assert note_tags({**first, "mlflow.note.content": "a user's"}, "two") == {}
    assert len(note_tags({}, "x" * 9000)["mlflow.note.content"]) < 5000


def test_links_follow_the_first_paragraph() -> None:
    text = linked("**Better.**  \nby 1 %\n\nmore", "7", "abc", ["report.html"])
    first, links, rest = text.split("\n\n")
    assert (first, rest) == ("**Better.**  \nby 1 %", "more")
    assert "[report.html](#/experiments/7/runs/abc/artifacts/report.html?" in links
    assert "[all trials](#/experiments/7/runs?" in links
    assert linked("**Better.**", "7", "abc", []).startswith("**Better.**\n\n[the study's run]")


def test_view_of_the_trials_is_plain_json() -> None:
    (view,) = (v for k, v in EXPERIMENT_TAGS.items() if k.startswith("mlflow.sharedViewState."))
    assert json.loads(view)["orderByKey"] == "metrics.`test/ppl`"
