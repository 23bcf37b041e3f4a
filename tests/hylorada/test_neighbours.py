"""Tools for transformers' models accept ours unchanged and compute the same numbers."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, pipeline

from hylorada import (
    Adapter,
    HyLoRADAConfig,
    HyLoRADAModel,
    Pack,
    evaluate,
    load_base,
    load_tokenizer,
)
from hylorada.data.blocks import Blocks

TEXT = "The old man went down to the sea, and looked at the ships. "
WINDOW = 32
# warnings of TRL and lm-eval about their own code
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer("tiny")


@pytest.fixture
def model(scramble: Callable[..., Adapter]) -> HyLoRADAModel:
    """Return a model far from its initial values; calls without the adapter give other results."""
    config = HyLoRADAConfig(
        r=2, landmark_bucketing="learnable", num_buckets=4, max_positions=WINDOW + 1
    )
    model = HyLoRADAModel(load_base("tiny"), config).eval()
    scramble(model.adapter)
    return model


def test_pipeline_generates_what_the_model_generates(
    model: HyLoRADAModel, tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    with caplog.at_level(logging.ERROR):
        writer = pipeline("text-generation", model=model, tokenizer=tokenizer)  # type: ignore[call-overload]
    assert "is not supported" not in caplog.text
    continuation = writer(TEXT, return_full_text=False, **options)[0]["generated_text"]
    prompt = tokenizer(TEXT, return_tensors="pt")
    expected = model.generate(prompt.input_ids, attention_mask=prompt.attention_mask, **options)
    assert (
        continuation
        == tokenizer.decode(expected[0, prompt.input_ids.shape[1] :], skip_special_tokens=True)
        != ""
    )
    plain = model.base.generate(prompt.input_ids, attention_mask=prompt.attention_mask, **options)  # type: ignore[operator]
    assert expected.tolist() != plain.tolist()


def _ours(model: HyLoRADAModel, first: int, ids: list[int]) -> float:
    """Return the perplexity of whole windows of text, each after the token before it."""
    rows = [[first, *ids][i : i + WINDOW + 1] for i in range(0, len(ids), WINDOW)]
    blocks = Blocks(
        np.array(rows, dtype=np.int32),
        np.full(len(rows), WINDOW),
        dropped_tokens=0,
        fingerprint="0" * 16,
    )
    return evaluate(Pack(model.base), [model.adapter], blocks)[0].ppl


@pytest.mark.parametrize("windows", [1, 3])
def test_perplexity_by_lm_eval_is_ours(
    model: HyLoRADAModel, tokenizer: PreTrainedTokenizerBase, windows: int
) -> None:
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    instance = pytest.importorskip("lm_eval.api.instance").Instance
    ids = tokenizer(TEXT * 20).input_ids[: windows * WINDOW]
    text = tokenizer.decode(ids)
    assert tokenizer(text).input_ids == ids
    harness = huggingface.HFLM(
        pretrained=model, tokenizer=tokenizer, batch_size=2, max_length=WINDOW
    )
    requests = [instance("loglikelihood_rolling", {}, (text,), 0)]
    (log_likelihood,) = harness.loglikelihood_rolling(requests, disable_tqdm=True)
    assert np.exp(-log_likelihood / len(ids)) == pytest.approx(
        _ours(model, harness.prefix_token_id, ids), rel=1e-5
    )
    assert (
        huggingface.HFLM(pretrained=model).tokenizer(text).input_ids == ids
    )  # which it finds by the base's place


def test_sft_trainer_trains_the_adapter_alone_on_our_loss(
    model: HyLoRADAModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    trl = pytest.importorskip("trl")
    data = Dataset.from_dict({"text": [f"{TEXT}{i}" for i in range(8)]})
    args = trl.SFTConfig(
        str(tmp_path),
        max_steps=2,
        save_steps=2,
        learning_rate=1e-3,
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    trainer = trl.SFTTrainer(
        model, args, train_dataset=data, eval_dataset=data, processing_class=tokenizer
    )
    ids = torch.tensor(
        [[*tokenizer(text).input_ids, tokenizer.eos_token_id] for text in data["text"]]
    )
    with torch.no_grad():
        expected = model.eval()(input_ids=ids, labels=ids).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
    base = {name: tensor.clone() for name, tensor in model.base.state_dict().items()}
    adapter = {
        name: parameter.detach().clone() for name, parameter in model.adapter.named_parameters()
    }
    trainer.train()
    assert all(torch.equal(base[name], tensor) for name, tensor in model.base.state_dict().items())
    assert [
        name for name, p in model.adapter.named_parameters() if torch.equal(adapter[name], p)
    ] == []
    opened = HyLoRADAModel.from_pretrained("tiny", tmp_path / "checkpoint-2")
    assert torch.equal(opened(ids).logits, model.eval()(input_ids=ids).logits)
