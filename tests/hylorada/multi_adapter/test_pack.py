"""A seat trains as it would alone, whatever its neighbours; no output depends on later tokens."""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from hylorada import Adapter, HyLoRADAConfig, HyLoRADAModel, InputError, Pack, TrainingConfig
from hylorada.data.batch_order import BatchOrder
from hylorada.errors import Diverged, DoesNotFit
from hylorada.training.seat import Seat
from hylorada.training.steps import Outcome, train_step

Ids = npt.NDArray[np.int32]
MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]
Results = list[Outcome]

STEPS = 6
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}

# One entry an arm: (changes to the adapter, changes to the training). No two are alike.
ARMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fixed": ({}, {"learning_rate": 1e-2}),
    "linear": (
        {"bucket_spacing": "linear", "num_buckets": 2, "num_landmarks": 5, "lora_dropout": 0.1},
        {"lr_scheduler_type": "linear", "warmup_ratio": 0.3, "weight_decay": 0.1},
    ),
    "learnable": (
        {
            "landmark_bucketing": "learnable",
            "boundary_diversity": 0.3,
            "boundary_repulsion": 0.2,
            "temperature": 0.05,
        },
        {"max_grad_norm": 0.1},
    ),
    "random": (
        {
            "landmark_bucketing": "learnable",
            "boundary_init": "random",
            "num_buckets": 3,
            "temperature": 0.2,
            "boundary_lr_scale": 10.0,
            "position_bias": False,
            "lora_dropout": 0.3,
        },
        {"learning_rate": 5e-3, "adam_beta1": 0.8, "adam_beta2": 0.95},
    ),
    "uniform, one module": (
        {
            "landmark_bucketing": "learnable",
            "boundary_init": "uniform",
            "target_modules": ("c_attn",),
        },
        {"lr_scheduler_type": "constant"},
    ),
    "curriculum": (
        {
            "landmark_bucketing": "learnable",
            "boundary_init": "fixed",
            "boundary_warmup": 0.4,
            "landmark_dropout": 0.2,
            "use_rslora": False,
        },
        {"learning_rate": 3e-2, "adam_epsilon": 1e-4},
    ),
    "LoRA alone": (
        {"landmarks": False, "position_bias": False, "lora_alpha": 1.0},
        {"learning_rate": 2e-2},
    ),
}
LLAMA_ARMS = {
    k: ({**a, "target_modules": ("v_proj",)} if "target_modules" in a else a, t)
    for k, (a, t) in ARMS.items()
}


class Lab:
    """Builds seats over one base and trains them."""

    def __init__(
        self,
        base: PreTrainedModel,
        make_config: MakeConfig,
        ids: Ids,
        known: dict[Any, tuple[Seat, Results]],
    ) -> None:
        self.base = base
        self.known = known
        self.pack = Pack(base)
        self.make_config = make_config
        self.ids = ids

    def seat(self, arm: str, *, seed: int = 7, **changes: Any) -> Seat:
        adapter_changes, training_changes = ARMS[arm]
        if self.base.config.model_type == "llama" and "target_modules" in adapter_changes:
            changes["target_modules"] = ("v_proj",)
        config = self.make_config(**{**adapter_changes, **changes})
        training = TrainingConfig(**{"max_steps": STEPS, "batch_size": 2, **training_changes})
        order = BatchOrder(len(self.ids), training.batch_size, seed=5)
        return Seat(Adapter(self.base, config, seed=seed), training, order)

    def train(self, seats: Mapping[str, Seat], steps: int = STEPS) -> dict[str, Results]:
        rows = [train_step(self.pack, seats, self.ids) for _ in range(steps)]
        return {name: [row[name] for row in rows] for name in seats}

    def alone(self, arm: str) -> tuple[Seat, Results]:
        """An arm trained alone and its losses, computed once for each family and dtype."""
        key = (self.base.config.model_type, self.base.dtype, arm)
        if key not in self.known:
            seat = self.seat(arm)
            self.known[key] = seat, self.train({arm: seat})[arm]
        return self.known[key]

    def solo(self, arm: str) -> Results:
        """Losses of an arm alone."""
        return self.alone(arm)[1]


MakeLab = Callable[..., Lab]


@pytest.fixture(scope="module")
def make_lab(make_base: MakeBase, make_config: MakeConfig, token_blocks: Ids) -> MakeLab:
    known: dict[Any, tuple[Seat, Results]] = {}

    def make(family: str = "gpt2", dtype: torch.dtype = torch.float64) -> Lab:
        return Lab(make_base(family, dtype), make_config, token_blocks, known)

    return make


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    return make_lab()


def _equal(found: Results, expected: Results, tolerance: float = 1e-10) -> None:
    assert not any(isinstance(x, Diverged) for x in [*found, *expected])
    assert found == pytest.approx(expected, rel=0, abs=tolerance)


def _poison(seat: Seat) -> None:
    next(p for n, p in seat.adapter.named_parameters() if n.endswith("lora_B")).data[0, 0] = float(
        "nan"
    )


def _ids(rows: int, length: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(seed))


def _hash(base: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    for name, tensor in base.state_dict().items():
        digest.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# --- a seat equals its solo run ---


@pytest.mark.parametrize(("family", "dtype"), [("gpt2", torch.float64), ("llama", torch.float32)])
def test_each_seat_equals_its_solo_run(make_lab: MakeLab, family: str, dtype: torch.dtype) -> None:
    lab = make_lab(family, dtype)
    together = lab.train({arm: lab.seat(arm) for arm in ARMS})
    for arm in ARMS:
        _equal(together[arm], lab.solo(arm), TOLERANCE[dtype])
    # the comparison means something only if the arms differ
    last = [results[-1] for results in together.values()]
    assert all(abs(a - b) > 1e-4 for a, b in itertools.combinations(last, 2))  # type: ignore[operator]


def test_parameters_equal_those_of_the_solo_run(lab: Lab) -> None:
    seats = {arm: lab.seat(arm) for arm in ARMS}
    lab.train(seats)
    for arm, seat in seats.items():
        alone, _ = lab.alone(arm)
        for parameter, other in zip(
            seat.adapter.parameters(), alone.adapter.parameters(), strict=True
        ):
            torch.testing.assert_close(parameter, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "order",
    [
        [6, 5, 4, 3, 2, 1, 0],
        [3, 0, 6, 2, 5, 1, 4],
        [4, 0, 1, 2, 3, 5, 6],  # the first seat adapts fewer modules than the second
    ],
)
def test_order_of_the_seats_does_not_matter(lab: Lab, order: list[int]) -> None:
    names = list(ARMS)
    together = lab.train({names[i]: lab.seat(names[i]) for i in order})
    for arm in names:
        _equal(together[arm], lab.solo(arm))


def test_seat_beside_one_of_fewer_targets_equals_its_solo_run(lab: Lab) -> None:
    """Together they have the targets of the second seat, but in another order."""
    targets = {"few": None, "many": ("all-linear",)}
    arm = next(iter(ARMS))
    alone = {n: lab.train({n: lab.seat(arm, target_modules=t)})[n] for n, t in targets.items()}
    together = lab.train({n: lab.seat(arm, target_modules=t) for n, t in targets.items()})
    for name, losses in together.items():
        _equal(losses, alone[name])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_neighbour_that_turns_to_nan_harms_nobody(
    make_lab: MakeLab, dtype: torch.dtype, place: int
) -> None:
    lab = make_lab("gpt2", dtype)
    arms = ["learnable", "linear", "uniform, one module"]
    seats = {arm: lab.seat(arm) for arm in arms}
    before = lab.train(seats, 3)
    _poison(seats[arms[place]])
    after = lab.train(seats, STEPS - 3)
    for arm in arms:
        if arm != arms[place]:
            _equal(before[arm] + after[arm], lab.solo(arm), TOLERANCE[dtype])
    assert all(isinstance(x, Diverged) and x.step == 4 for x in after[arms[place]])


def test_neighbour_with_a_huge_learning_rate_harms_nobody(lab: Lab) -> None:
    wild = lab.seat("fixed")
    wild.training = TrainingConfig(
        max_steps=STEPS, batch_size=2, learning_rate=1e30, warmup_ratio=0.0
    )
    together = lab.train(
        {"wild": wild, "random": lab.seat("random"), "curriculum": lab.seat("curriculum")}
    )
    last = together["wild"][-1]
    assert isinstance(last, Diverged) or (
        isinstance(last, float) and last > 1e6
    )  # whether 1e30 overflows depends on the processor
    for arm in ("random", "curriculum"):
        _equal(together[arm], lab.solo(arm))


def test_later_trial_in_a_used_seat_starts_afresh(lab: Lab) -> None:
    first, stays = lab.seat("fixed"), lab.seat("learnable")
    lab.train({"seat 0": first, "seat 1": stays}, 2)
    later = lab.seat("random")
    assert later.step == 0
    assert not later.optimizer.state
    found = lab.train({"seat 0": later, "seat 1": stays}, STEPS - 2)
    found["seat 0"] += lab.train({"seat 0": later}, 2)["seat 0"]
    _equal(found["seat 0"], lab.solo("random"))
    _equal(found["seat 1"], lab.solo("learnable")[2:])


def test_first_update_opposes_its_own_gradient(lab: Lab) -> None:
    used = lab.seat("fixed")
    lab.train({"a": used}, 5)
    fresh = lab.seat("LoRA alone")
    lab.train({"a": fresh, "b": used}, 1)
    for name, parameter in fresh.adapter.named_parameters():
        if name.endswith("lora_B"):  # started at zero
            assert parameter.grad is not None
            torch.testing.assert_close(
                parameter.data, -2e-2 * parameter.grad.sign(), rtol=0.01, atol=0
            )


def test_neighbours_step_changes_no_tensor_of_an_idle_seat(lab: Lab) -> None:
    idle, busy = lab.seat("learnable"), lab.seat("fixed")
    lab.train({"a": idle, "b": busy}, 2)
    before = [p.detach().clone() for p in idle.adapter.parameters()]
    lab.train({"b": busy}, 3)
    assert all(torch.equal(p, q) for p, q in zip(before, idle.adapter.parameters(), strict=True))
    assert idle.step == 2


def test_unequal_ranks_share_a_pass_and_unequal_batches_take_turns(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> dict[str, Seat]:
        ranks = {f"r={r}": lab.seat("learnable", r=r) for r in (1, 2, 3)}
        small = Seat(
            lab.seat("fixed").adapter,
            TrainingConfig(max_steps=STEPS, batch_size=1),
            BatchOrder(24, 1, 5),
        )
        return {**ranks, "small": small, "fixed": lab.seat("fixed")}

    passes, whole = [], lab.pack.token_nll

    def counted(adapters: Sequence[Adapter], ids: torch.Tensor) -> torch.Tensor:
        passes.append(ids.shape[:2])
        return whole(adapters, ids)

    monkeypatch.setattr(lab.pack, "token_nll", counted)
    together = lab.train(build())
    assert passes == [(4, 2), (1, 1)] * STEPS
    assert list(together) == list(build())
    for name, seat in build().items():
        _equal(together[name], lab.train({name: seat})[name])


@pytest.mark.parametrize("moment", ["forward", "backward", "update"])
def test_seats_that_do_not_fit_together_take_turns(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    arms = ["learnable", "linear", "random", "curriculum", "fixed"]
    seats, passes = {arm: lab.seat(arm) for arm in arms}, []
    whole = lab.pack.token_nll

    def limited(adapters: Sequence[Adapter], ids: torch.Tensor) -> torch.Tensor:
        passes.append(len(adapters))
        monkeypatch.undo()
        monkeypatch.setattr(lab.pack, "token_nll", limited)
        nll = whole(adapters, ids)
        if len(adapters) > 2 and moment == "forward":
            raise torch.OutOfMemoryError
        if len(adapters) > 2 and moment == "backward":
            nll.register_hook(_no_memory)
        if len(adapters) > 2 and moment == "update":
            monkeypatch.setattr("hylorada.training.seat._step_in_place", _no_memory)
        return nll

    monkeypatch.setattr(lab.pack, "token_nll", limited)
    together = lab.train(seats)
    for arm in arms:
        _equal(together[arm], lab.solo(arm))
    assert passes == [5, 2, 2, 1] + [2, 2, 1] * (STEPS - 1)


def _no_memory(*_: object) -> Any:
    raise torch.OutOfMemoryError


def test_seat_that_does_not_fit_alone_fails_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    seats, whole = {"small": lab.seat("random"), "big": lab.seat("fixed")}, lab.pack.token_nll

    def limited(adapters: Sequence[Adapter], ids: torch.Tensor) -> torch.Tensor:
        if seats["big"].adapter in adapters:
            raise torch.OutOfMemoryError
        return whole(adapters, ids)

    monkeypatch.setattr(lab.pack, "token_nll", limited)
    results = lab.train(seats, 3)
    _equal(results["small"], lab.solo("random")[:3])
    assert all(isinstance(r, DoesNotFit) for r in results["big"])
    assert seats["big"].step == 0


def test_each_seat_uses_its_own_scaling(lab: Lab) -> None:
    """Scaling and B are folded into each other: alpha 3 alpha' with B is alpha' with 3 B."""
    adapters = [lab.seat("LoRA alone", lora_alpha=a).adapter for a in (1.0, 3.0)]
    for adapter, factor in zip(adapters, (3.0, 1.0), strict=True):
        generator = torch.Generator().manual_seed(0)
        for name, parameter in adapter.named_parameters():
            if name.endswith("lora_B"):
                parameter.data.normal_(0.0, 0.1, generator=generator).mul_(factor)
    nll = lab.pack.token_nll(adapters, _ids(2).expand(2, 2, 16))
    torch.testing.assert_close(nll[0], nll[1], rtol=0, atol=1e-12)
    assert (nll - lab.pack.token_nll([], _ids(2)[None])).abs().max() > 1e-2


def test_token_nll_equals_cross_entropy_of_the_logits(
    make_base: MakeBase, make_config: MakeConfig, scramble: Callable[..., Adapter]
) -> None:
    for family in ("llama", "gpt2", "gpt_neox"):
        model = HyLoRADAModel(
            make_base(family, torch.float64), make_config(landmark_bucketing="learnable")
        )
        scramble(model.adapter)
        ids = _ids(3)
        logits = model(ids).logits
        expected = F.cross_entropy(
            logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        ).view(3, 15)
        found = Pack(model.base).token_nll([model.adapter], ids[None])
        torch.testing.assert_close(found, expected[None], rtol=0, atol=1e-12)


# --- frozen means frozen, fp32 means fp32 ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_of_the_base_never_change(make_lab: MakeLab, dtype: torch.dtype) -> None:
    lab = make_lab("gpt2", dtype)
    before = _hash(lab.base)
    lab.train({arm: lab.seat(arm) for arm in ARMS}, 3)
    assert _hash(lab.base) == before
    assert all(p.grad is None and not p.requires_grad for p in lab.base.parameters())


@pytest.mark.parametrize(
    ("base_dtype", "dtype"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_adapters_gradients_and_moments_are_fp32_or_better(
    make_lab: MakeLab, base_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    lab = make_lab("llama", base_dtype)
    seats = {arm: lab.seat(arm) for arm in ARMS}
    lab.train(seats, 5)  # past the curriculum's hold
    for seat in seats.values():
        for name, parameter in seat.adapter.named_parameters():
            state = seat.optimizer.state[parameter]
            assert parameter.grad is not None, name
            assert {
                parameter.dtype,
                parameter.grad.dtype,
                state["exp_avg"].dtype,
                state["exp_avg_sq"].dtype,
            } == {dtype}


def test_bf16_base_trains_towards_the_fp32_losses(make_lab: MakeLab) -> None:
    half, single = (make_lab("llama", d).solo("learnable") for d in (torch.bfloat16, torch.float32))
    assert half == pytest.approx(single, rel=0.02)


# --- the base after and between packs ---


def _hooks(base: PreTrainedModel) -> int:
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
        for m in base.modules()
    )


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox"])
def test_close_removes_all_hooks(make_base: MakeBase, family: str) -> None:
    base = make_base(family)
    before = _hooks(base)
    pack = Pack(base)
    assert _hooks(base) > before
    pack.close()
    pack.close()
    assert _hooks(base) == before


def test_second_pack_over_one_base_is_as_on_a_new_base(make_lab: MakeLab) -> None:
    first = make_lab()
    first.train({"a": first.seat("linear", r=4)}, 3)
    first.pack.close()
    second = Lab(first.base, first.make_config, first.ids, {})
    expected = make_lab().solo("uniform, one module")
    _equal(second.solo("uniform, one module"), expected, 0.0)


def test_unsupported_base_is_refused(make_base: MakeBase, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_base()
    monkeypatch.setattr(base.config, "model_type", "lama")
    with pytest.raises(
        InputError, match="model type 'lama' is not supported; did you mean 'llama'"
    ):
        Pack(base)


def _masked(adapters: Sequence[Adapter], pack: Pack) -> torch.Tensor:
    return pack.token_nll(adapters, _ids(2).expand(len(adapters), 2, 16))


def test_dropout_draws_from_the_adapters_own_stream(lab: Lab) -> None:
    def build(seed: int) -> Adapter:
        adapter = lab.seat("LoRA alone", seed=seed, lora_dropout=0.5).adapter
        for name, parameter in adapter.named_parameters():
            if name.endswith("lora_B"):
                parameter.data.fill_(0.1)
        return adapter

    torch.rand(5)  # the global stream plays no part
    first = _masked([build(0), build(1)], lab.pack)
    torch.testing.assert_close(_masked([build(0)], lab.pack)[0], first[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(_masked([build(1)], lab.pack)[0], first[1], rtol=0, atol=1e-12)
    off = [build(0).eval(), build(0).eval()]
    assert torch.equal(_masked(off, lab.pack)[0], _masked(off, lab.pack)[1])
    assert not torch.allclose(_masked([build(0)], lab.pack)[0], _masked(off, lab.pack)[0])


def test_partly_quantized_base_is_refused_and_left_as_it_was(
    make_base: Callable[..., PreTrainedModel],
) -> None:
    class Quantized(nn.Linear):
        """Stands for a class of a quantized module."""

    base = make_base().train().requires_grad_()
    base.get_submodule("model.layers.1.self_attn.k_proj").__class__ = Quantized
    before = [type(module) for module in base.modules()]
    with pytest.raises(InputError, match="linear modules of class Quantized are not supported"):
        Pack(base)
    assert [type(module) for module in base.modules()] == before
    assert base.training
    assert all(p.requires_grad for p in base.parameters())
