"""What every design must do on every kind of base; a new design or family joins with one line."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from designs import ARCHITECTURES, DESIGNS, FAMILIES, MY_DESIGN
from peft import PeftModel
from safetensors.torch import save_file
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    BatchOrder,
    Diverged,
    HyLoRADAConfig,
    HyLoRADAModel,
    Pack,
    Seat,
    TrainingConfig,
    load_seat,
    save_seat,
    train_step,
)

STEPS = 4

Ids = npt.NDArray[np.int32]
MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]
MakeModel = Callable[..., HyLoRADAModel]

every_family = pytest.mark.parametrize("family", FAMILIES)
every_architecture = pytest.mark.parametrize("family", ARCHITECTURES)
every_design = pytest.mark.parametrize("design", DESIGNS)


def _ids(rows: int = 2, length: int = 16) -> torch.Tensor:
    return torch.randint(1, 50, (rows, length), generator=torch.Generator().manual_seed(0))


def _seat(base: PreTrainedModel, config: HyLoRADAConfig, ids: Ids) -> Seat:
    training = TrainingConfig(max_steps=STEPS, batch_size=2, learning_rate=1e-2)
    return Seat(Adapter(base, config, seed=7), training, BatchOrder(len(ids), 2, seed=5))


def _bits(base: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in base.state_dict().items()}


def _losses(
    pack: Pack, seats: dict[str, Seat], ids: Ids, steps: int = STEPS
) -> dict[str, list[float]]:
    rows = [train_step(pack, seats, ids) for _ in range(steps)]
    assert not any(isinstance(x, Diverged) for row in rows for x in row.values())
    return {name: [float(row[name]) for row in rows] for name in seats}  # type: ignore[arg-type]


@every_design
@every_family
def test_untrained_adapter_is_the_base(
    make_base: MakeBase, make_config: MakeConfig, family: str, design: str
) -> None:
    base, ids = make_base(family, torch.float64), _ids()
    expected = base(ids).logits
    model = HyLoRADAModel(base, make_config(**DESIGNS[design])).eval()
    tolerance = (
        1e-12 if model.active_peft_config.use_dora else 0
    )  # norms are rounded; a sum with zeros is not
    torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=tolerance)


@every_design
@every_architecture
def test_disabled_adapter_is_the_base(
    make_model: MakeModel, make_base: MakeBase, family: str, design: str
) -> None:
    model, ids = make_model(family, **DESIGNS[design]), _ids()
    adapted, plain = model(ids).logits, make_base(family, torch.float64)(ids).logits
    with model.disable_adapter():
        assert torch.equal(model(ids).logits, plain)
    assert torch.equal(model(ids).logits, adapted)
    assert (adapted - plain).abs().max() > 1e-2  # the equality above means something


@every_design
@every_family
def test_no_logit_depends_on_later_tokens_or_other_rows(
    make_model: MakeModel, family: str, design: str
) -> None:
    model, ids = make_model(family, **DESIGNS[design]), _ids(1).expand(15, -1)
    later = (
        torch.arange(16) >= torch.arange(1, 16)[:, None]
    )  # each row is changed from another token on
    changed = torch.where(later, (ids + 1) % 50, ids)
    moved = (model(changed).logits - model(ids).logits).abs().amax(-1)
    assert moved[~later].max() <= 1e-12
    assert (moved * later).amax(1).min() > 1e-2


@every_design
@every_family
def test_every_parameter_gets_a_gradient(make_model: MakeModel, family: str, design: str) -> None:
    model, ids = make_model(family, **DESIGNS[design]), _ids()
    model(ids, labels=ids).loss.backward()
    without = {n for n, p in model.adapter.named_parameters() if p.grad is None or not p.grad.any()}
    assert not without
    assert all(p.grad is None for p in model.base.parameters())


@every_architecture
def test_mixed_pack_trains_every_seat_as_alone_and_leaves_the_base(
    make_base: MakeBase, make_config: MakeConfig, token_blocks: Ids, family: str
) -> None:
    base = make_base(family, torch.float64)
    before, pack = _bits(base), Pack(base)
    configs = {name: make_config(**changes) for name, changes in DESIGNS.items()}
    seats = {name: _seat(base, config, token_blocks) for name, config in configs.items()}
    together = _losses(pack, seats, token_blocks)
    for name, config in configs.items():
        alone = {name: _seat(base, config, token_blocks)}
        assert together[name] == pytest.approx(
            _losses(pack, alone, token_blocks)[name], rel=0, abs=1e-10
        )
        untrained = Adapter(base, config, seed=7).parameters()
        trained = zip(
            seats[name].adapter.parameters(),
            alone[name].adapter.parameters(),
            untrained,
            strict=True,
        )
        for found, expected, start in trained:
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
            assert not torch.equal(found, start)
    assert len({losses[-1] for losses in together.values()}) == len(DESIGNS)  # no two train alike
    assert all(torch.equal(before[name], tensor) for name, tensor in base.state_dict().items())


@every_design  # a seat is saved as a few vectors, whatever its base
def test_checkpoint_goes_on_bit_for_bit(
    make_base: MakeBase, make_config: MakeConfig, token_blocks: Ids, tmp_path: Path, design: str
) -> None:
    base = make_base()
    dropout = {"lora_dropout": 0.5, "landmark_dropout": 0.3}
    config, pack = make_config(**DESIGNS[design], **dropout), Pack(base)
    whole, first, later = (_seat(base, config, token_blocks) for _ in range(3))
    expected = _losses(pack, {"a": whole}, token_blocks)["a"]
    found = _losses(pack, {"a": first}, token_blocks, 2)["a"]
    save_seat(first, tmp_path / "seat", {})
    load_seat(later, tmp_path / "seat")
    assert found + _losses(pack, {"a": later}, token_blocks, 2)["a"] == expected


@every_design
@every_architecture
def test_two_evaluations_are_equal_bit_for_bit(
    make_model: MakeModel, family: str, design: str
) -> None:
    model, ids = make_model(family, torch.float32, lora_dropout=0.5, **DESIGNS[design]), _ids()
    first = model(ids).logits
    model.train()
    assert not torch.equal(model(ids).logits, first)
    assert torch.equal(model.eval()(ids).logits, first)


@every_design
@every_family
def test_cache_and_left_pads_change_no_token(
    make_model: MakeModel, family: str, design: str
) -> None:
    model, ids = make_model(family, **DESIGNS[design]), _ids(2, 8)
    mask = torch.tensor([[1] * 8, [0] * 5 + [1] * 3])
    options: dict[str, Any] = {
        "max_new_tokens": 4,
        "do_sample": False,
        "pad_token_id": 0,
        "eos_token_id": None,
    }
    found = model.generate(
        ids, attention_mask=mask, **options, output_logits=True, return_dict_in_generate=True
    )
    for row, pads in enumerate([0, 5]):
        whole = model(found.sequences[row : row + 1, pads:], use_cache=False).logits[0, -5:-1]
        assert found.sequences[row, 8:].tolist() == whole.argmax(-1).tolist()
        # generate() returns them in fp32
        torch.testing.assert_close(
            torch.stack(found.logits, 1)[row], whole.float(), rtol=1e-6, atol=1e-6
        )


@every_design
@every_architecture
def test_gradient_checkpointing_changes_no_gradient(
    make_model: MakeModel, family: str, design: str
) -> None:
    model, ids, gradients = make_model(family, **DESIGNS[design]).train(), _ids(), []
    for enable in (False, True):
        if enable:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients.append({n: p.grad for n, p in model.adapter.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0, atol=1e-12)


@every_design
@every_architecture
def test_merged_lora_part_equals_the_unmerged(
    make_model: MakeModel, family: str, design: str
) -> None:
    model, ids = make_model(family, **{**DESIGNS[design], "position_bias": False}), _ids()
    before, logits = _bits(model.base), model(ids).logits
    model.merge()
    torch.testing.assert_close(model(ids).logits, logits, rtol=0, atol=1e-10)
    model.unmerge()
    assert all(
        torch.equal(before[name], tensor) for name, tensor in model.base.state_dict().items()
    )


@pytest.mark.parametrize(
    ("family", "design"),
    # all other designs share the LoRA part with one of these; one family shows that they save it
    # alone
    [
        (f, d)
        for d in DESIGNS
        for f in (FAMILIES if d in ("LoRA", "rsLoRA", "DoRA") else FAMILIES[:1])
    ],
)
def test_stock_peft_computes_the_lora_part(
    make_model: MakeModel, make_base: MakeBase, tmp_path: Path, family: str, design: str
) -> None:
    model, ids = make_model(family, **DESIGNS[design]), _ids()
    model.save_pretrained(tmp_path)
    model.adapter.landmark = model.adapter.position_bias = None
    stock = (
        PeftModel.from_pretrained(make_base(family, torch.float64), tmp_path)
        .to(torch.float64)
        .eval()
    )
    torch.testing.assert_close(stock(input_ids=ids).logits, model(ids).logits, rtol=0, atol=1e-10)


def _saved(
    make_base: MakeBase, make_config: MakeConfig, scramble: Callable[..., Adapter], folder: Path
) -> Iterator[tuple[str, str]]:
    for family in FAMILIES:
        base = make_base(family)
        base.save_pretrained(folder / family)
        # files hold the modules of an architecture and the tensors of a design; head sizes differ
        # within an architecture too
        for design in DESIGNS if family in ARCHITECTURES else ["attention, DoRA"]:
            model = HyLoRADAModel(base, make_config(**DESIGNS[design])).eval()
            scramble(model.adapter)
            place = folder / f"{family}, {design}"
            model.save_pretrained(place)
            save_file({"logits": model(_ids()).logits.detach()}, place / "expected.safetensors")
            model.close()
            yield family, str(place)


def test_saved_adapters_compute_the_same_in_a_fresh_process(
    make_base: MakeBase, make_config: MakeConfig, scramble: Callable[..., Adapter], tmp_path: Path
) -> None:
    save_file({"ids": _ids()}, tmp_path / "ids.safetensors")
    places = list(_saved(make_base, make_config, scramble, tmp_path))
    (tmp_path / "places.json").write_text(json.dumps(places))
    program = """
import json, sys, torch
from itertools import groupby
from safetensors.torch import load_file
from hylorada import HyLoRADAModel, load_base, load_landmark_design
torch.set_num_threads(1)
folder = sys.argv[1]
load_landmark_design(sys.argv[2])
ids = load_file(f"{folder}/ids.safetensors")["ids"]
for family, places in groupby(json.load(open(f"{folder}/places.json")), lambda pair: pair[0]):
    base = load_base(f"{folder}/{family}")
    for _, place in places:
        model = HyLoRADAModel.from_pretrained(base, place).eval()
        found, expected = model(ids).logits, load_file(f"{place}/expected.safetensors")["logits"]
        model.close()
        if (found - expected).abs().max() > 1e-6:
            sys.exit(f"{place}: {(found - expected).abs().max()}")
        print(place)
"""
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), f"{MY_DESIGN}:Gated"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [place for _, place in places]
