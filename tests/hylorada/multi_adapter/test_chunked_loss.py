"""The chunked head loss against torch's own cross-entropy."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hylorada.multi_adapter import chunked_loss
from hylorada.multi_adapter.chunked_loss import Head, head_nll

VOCABULARY, HIDDEN = 11, 5


@pytest.fixture(params=[1, 3 * VOCABULARY, 1 << 20], ids=["row by row", "three rows", "one chunk"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(chunked_loss, "_CHUNK_NUMBERS", request.param)
    return int(request.param)


@pytest.fixture(params=["cpu", "gpu"])
def as_on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's arithmetic too, which is compiled there."""
    if request.param == "gpu":
        monkeypatch.setattr(chunked_loss, "_nll_and_slope_in_place", chunked_loss._nll_and_slope)


def _inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    targets = torch.randint(VOCABULARY, (2, 4), generator=generator)
    return (
        random(2, 4, HIDDEN).requires_grad_(),
        random(VOCABULARY, HIDDEN),
        random(VOCABULARY),
        targets,
    )


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.usefixtures("chunk", "as_on")
def test_head_nll_and_its_gradient_equal_cross_entropy(with_bias: bool) -> None:
    hidden, weight, bias, targets = _inputs()
    used = bias if with_bias else None
    mix = torch.linspace(-1.0, 2.0, 8, dtype=torch.float64).view(
        2, 4
    )  # another weight for each row
    reference = F.cross_entropy(
        F.linear(hidden, weight, used).flatten(0, 1), targets.flatten(), reduction="none"
    )
    (expected,) = torch.autograd.grad((reference.view(2, 4) * mix).sum(), hidden)
    found = head_nll(hidden, Head.of(weight, used), targets)
    torch.testing.assert_close(found, reference.view(2, 4), rtol=0, atol=1e-13)
    (gradient,) = torch.autograd.grad((found * mix).sum(), hidden)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-13)


def test_large_vocabulary_is_summed_without_bias_in_fp32() -> None:
    """torch's own fp32 cross-entropy is 1e-5 nats off here, every row in the same direction."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 16, generator=generator) for n in (256, 50_000))
    targets = torch.randint(50_000, (256,), generator=generator)
    exact = F.cross_entropy(F.linear(hidden, weight).double(), targets, reduction="none")
    for rows in (hidden, hidden.clone().requires_grad_()):
        error = head_nll(rows, Head.of(weight, None), targets).detach().double() - exact
        assert error.mean().abs() < 2e-7


@pytest.mark.usefixtures("chunk")
def test_head_nll_passes_a_gradient_check() -> None:
    hidden, weight, bias, targets = _inputs()
    assert torch.autograd.gradcheck(
        lambda h: head_nll(h, Head.of(weight, bias), targets), (hidden,)
    )


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.usefixtures("chunk")
def test_a_non_finite_row_touches_no_other(poison: float) -> None:
    hidden, weight, bias, targets = _inputs()
    clean = head_nll(hidden, Head.of(weight, bias), targets)
    (expected,) = torch.autograd.grad(clean.sum(), hidden)
    bad = hidden.detach().clone()
    bad[0, 1] = poison
    found = head_nll(bad.requires_grad_(), Head.of(weight, bias), targets)
    (gradient,) = torch.autograd.grad(found.sum(), bad)
    others = torch.ones(2, 4, dtype=torch.bool)
    others[0, 1] = False
    assert found[0, 1].isnan()
    assert torch.equal(found[others], clean[others])
    assert torch.equal(gradient[others], expected[others])


@pytest.mark.usefixtures("chunk")
def test_half_precision_states_give_fp32_losses() -> None:
    hidden, weight, bias, targets = _inputs(torch.bfloat16)
    found = head_nll(hidden, Head.of(weight, bias), targets)
    logits = F.linear(hidden, weight, bias).float()
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found.flatten(), F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    )
    found.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_no_gradient_is_kept_without_need() -> None:
    hidden, weight, bias, targets = _inputs()
    assert not head_nll(hidden.detach(), Head.of(weight, bias), targets).requires_grad
    with torch.no_grad():
        torch.testing.assert_close(
            head_nll(hidden, Head.of(weight, bias), targets),
            head_nll(hidden.detach(), Head.of(weight, bias), targets),
        )


@pytest.mark.usefixtures("as_on")
def test_padding_of_the_vocabulary_changes_nothing() -> None:
    hidden, weight, bias, targets = _inputs()
    padded = Head(
        F.pad(weight, (0, 0, 0, 3), value=2.0), F.pad(bias, (0, 3), value=5.0), VOCABULARY
    )
    expected, found = (
        head_nll(hidden, Head.of(weight, bias), targets),
        head_nll(hidden, padded, targets),
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    gradients = [torch.autograd.grad(x.sum(), hidden)[0] for x in (expected, found)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-13)
