"""`hylorada evaluate` reports the loss that lm-eval finds for the same tokens."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from hylorada import (
    Adapter,
    HyLoRADAConfig,
    HyLoRADAModel,
    load_base,
    load_text,
    load_tokenizer,
)
from studies.cli.commands import main

SIZE = 64  # tokens in a block, of which the first is not predicted
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def _documents(tokenizer: PreTrainedTokenizerBase, count: int) -> list[str]:
    """Return texts of SIZE - 1 tokens each, from the built-in text."""
    ids = tokenizer(load_text("pydocs").splits["test"][0]).input_ids
    pieces = [str(tokenizer.decode(ids[i : i + SIZE - 1])) for i in range(0, len(ids), SIZE)]
    whole = [text for text in pieces if len(tokenizer(text).input_ids) == SIZE - 1]
    return whole[:count]


def test_loss_of_a_whole_adapter_is_that_of_lm_eval(
    scramble: Callable[..., Adapter], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """lm-eval puts the end token before a text, so each block of ours starts with one."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    instance = pytest.importorskip("lm_eval.api.instance").Instance
    tokenizer = load_tokenizer("tiny")
    documents = _documents(tokenizer, 6)
    config = HyLoRADAConfig(landmark_bucketing="learnable", num_buckets=8, max_positions=SIZE)
    model = HyLoRADAModel(load_base("tiny"), config).eval()
    scramble(model.adapter)
    harness = huggingface.HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4)
    requests = [
        instance("loglikelihood_rolling", {}, (text,), i) for i, text in enumerate(documents)
    ]
    log_likelihoods = harness.loglikelihood_rolling(requests, disable_tqdm=True)
    model.save_pretrained(tmp_path / "adapter")
    text = tmp_path / "test.txt"
    text.write_text("".join(tokenizer.eos_token + document for document in documents))
    arguments = (f"--adapter={tmp_path / 'adapter'}", f"--data={tmp_path}", f"--block-size={SIZE}")
    capsys.readouterr()
    assert main(["evaluate", *arguments, "--document-separator=none", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert (measured["blocks"], measured["tokens"]) == (6, 6 * (SIZE - 1))
    assert measured["nll"] == pytest.approx(-sum(log_likelihoods) / measured["tokens"], rel=1e-5)
    alone = ("--model=tiny", *arguments[1:], "--document-separator=none", "--json")
    assert main(["evaluate", *alone]) == 0
    base = json.loads(capsys.readouterr().out)
    assert abs(base["nll"] - measured["nll"]) > 0.1  # the adapter takes part in both
