"""The folder of the built-in base, for tools that load bases by themselves."""

import dataclasses
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hylorada


def test_transformers_loads_the_base_that_we_load() -> None:
    folder = hylorada.builtin_base()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("A frozen base, a small adapter.", return_tensors="pt").input_ids
    assert ids.tolist() == [
        hylorada.load_tokenizer("tiny")("A frozen base, a small adapter.").input_ids
    ]
    with torch.no_grad():
        expected = hylorada.load_base("tiny")(input_ids=ids).logits
        assert torch.equal(model(input_ids=ids).logits, expected)


def test_its_folder_is_the_base_tiny() -> None:
    """What is counted without its modules equals what they count, and its weights fit them."""
    by_folder = hylorada.inspect_base(str(hylorada.builtin_base()))
    assert dataclasses.replace(by_folder, name="tiny") == hylorada.inspect_base("tiny")


def test_its_place_is_known_without_torch() -> None:
    program = "import hylorada, sys; hylorada.builtin_base(); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout == "False\n"
