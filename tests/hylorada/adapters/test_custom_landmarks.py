"""Landmark designs of a user's own: loading their file, and the faults that are named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from designs import DESIGNS, MY_DESIGN
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    BatchOrder,
    HyLoRADAConfig,
    HyLoRADAModel,
    InputError,
    Pack,
    Seat,
    TrainingConfig,
    load_landmark_design,
    probe,
    register_landmark_hook,
)

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]


def problems_of(base: PreTrainedModel, config: HyLoRADAConfig) -> list[str]:
    ids = np.random.default_rng(0).integers(0, 50, size=(4, 16), dtype=np.int32)
    seat = Seat(Adapter(base, config, seed=1), TrainingConfig(batch_size=2), BatchOrder(4, 2, 0))
    with pytest.raises(InputError) as caught:
        probe(Pack(base), [seat], torch.from_numpy(ids))
    return caught.value.problems


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_model_computes_the_formula(
    make_model: Callable[..., HyLoRADAModel], dtype: torch.dtype
) -> None:
    """h' = h + sigmoid(gates h + slope p / 100) landmarks, computed by hand after the body."""
    model = make_model("llama", dtype, **DESIGNS["own"], position_bias=False)
    ids, own = torch.randint(1, 50, (2, 16)), dict(model.adapter.landmark.named_parameters())  # type: ignore[union-attr]
    found = model(ids).logits
    model.adapter.landmark = None
    hidden = model.get_decoder()(ids).last_hidden_state
    logits = hidden.to(own["gates"].dtype) @ own["gates"].T
    logits = logits + own["slope"] * torch.arange(16)[:, None] / 100
    moved = hidden + (torch.sigmoid(logits) @ own["landmarks"]).to(dtype)
    expected = model.base.get_output_embeddings()(moved)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 if dtype.itemsize > 4 else 0)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("StartsAtOne", "an untrained module must add zeros; let `landmarks` start at zero"),
        ("Unseeded", "initial values differ between two builds with one seed"),
        ("MixesRows", "context lets rows of a batch influence each other"),
        ("Draws", "context must not draw random numbers"),
        ("Short", r"context must return \[2, 16, 16\] for two rows, got \[2, 15, 16\]"),
        ("Fails", "context raised RuntimeError: no context today"),
        ("Leaks", "the prediction from 1 tokens depends on later ones .* through 'model.norm'"),
        ("Unused", "parameter 'landmark.spare' gets no gradient"),
    ],
)
def test_faults_are_named_before_training(
    make_base: MakeBase, make_config: MakeConfig, name: str, problem: str
) -> None:
    design = load_landmark_design(f"{MY_DESIGN}:{name}")
    (found,) = problems_of(make_base(), make_config(landmark_design=design))
    with pytest.raises(InputError, match=rf"landmark_design 'my_design.py:{name}': {problem}"):
        raise InputError(found)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Counts", "buffer 'seen' is in no checkpoint; register it with persistent=False"),
        ("Bounded", "no parameter may be called 'boundaries', which are trained apart"),
    ],
)
def test_values_that_no_file_would_hold_are_refused(
    make_base: MakeBase, make_config: MakeConfig, name: str, problem: str
) -> None:
    config = make_config(landmark_design=load_landmark_design(f"{MY_DESIGN}:{name}"))
    with pytest.raises(InputError, match=rf"^landmark_design 'my_design.py:{name}': {problem}"):
        HyLoRADAModel(make_base(), config)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("NotFinished", "NotFinished must be a subclass of CustomLandmark with a method context"),
        ("Bare", "Bare must be a subclass of CustomLandmark"),
        ("Gates", "Gates must be a subclass of CustomLandmark .* got None"),
        ("no class", "must be FILE.py:CLASS"),
    ],
)
def test_what_is_no_design_is_refused(name: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        load_landmark_design(f"{MY_DESIGN}:{name}")


def test_file_that_cannot_be_read_or_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'.*/none.py:A' can't be read: .*No such file"):
        load_landmark_design(f"{tmp_path}/none.py:A")
    with pytest.raises(InputError, match="can't be run: ZeroDivisionError: division by zero"):
        load_landmark_design("odd.py:A", "A = 1 / 0")


def test_changed_file_takes_the_place_of_the_earlier_one(
    make_base: MakeBase, make_config: MakeConfig
) -> None:
    source = MY_DESIGN.read_text(encoding="utf-8")
    config = make_config(landmark_design=load_landmark_design("again.py:Gated", source))
    first = Adapter(make_base(), config, seed=0).landmark
    load_landmark_design("again.py:Gated", source)
    assert type(Adapter(make_base(), config, seed=0).landmark) is type(first)
    load_landmark_design("again.py:Gated", source.replace("torch.sigmoid", "torch.tanh"))
    assert type(Adapter(make_base(), config, seed=0).landmark) is not type(first)


def test_saved_adapter_never_runs_a_file_by_itself(
    make_model: Callable[..., HyLoRADAModel],
    make_base: MakeBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even one that lies in the adapter's folder and in the working folder."""
    source = MY_DESIGN.read_text(encoding="utf-8")
    design = load_landmark_design("mine.py:Gated", source)
    model = make_model("llama", torch.float32, landmark_design=design)
    model.save_pretrained(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('this code ran')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hylorada.adapters.landmarks.custom._loaded", {})
    with pytest.raises(InputError, match=r"call load_landmark_design\('FOLDER/mine.py:Gated'\)"):
        HyLoRADAModel.from_pretrained(make_base(), tmp_path)
    load_landmark_design("mine.py:Gated", source)
    ids = torch.randint(1, 50, (2, 16))
    again = HyLoRADAModel.from_pretrained(make_base(), tmp_path)
    torch.testing.assert_close(again(ids).logits, model(ids).logits)


def test_design_hangs_on_any_model(
    make_base: MakeBase, make_config: MakeConfig, token_blocks: npt.NDArray[np.int32]
) -> None:
    model, ids = make_base(), torch.from_numpy(token_blocks[:2]).long()
    landmarks = register_landmark_hook(model, make_config(**DESIGNS["own"]))
    optimizer = torch.optim.AdamW(landmarks.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_unknown_design_is_named(make_config: MakeConfig) -> None:
    with pytest.raises(InputError, match="landmark_design 'globl' is unknown; did you mean"):
        make_config(landmark_design="globl")
    with pytest.raises(InputError, match=r"'/a/b.py:C' must be FILE.py:CLASS without a folder"):
        make_config(landmark_design="/a/b.py:C")
