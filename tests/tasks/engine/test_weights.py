"""bf16 copies of the weights: the same numbers as autocast makes, to the last bit."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tasks.engine.transforms import CastWeights, drop_batch_counters
from tasks.vision.models import build_image_model


class Tied(nn.Module):
    """An embedding whose weight is also the output layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.body = nn.Linear(8, 8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(torch.relu(self.body(self.embed(x))))
        return logits.flatten(1)


CASES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "resnet20": (
        lambda: build_image_model("resnet20", n_classes=10, image_size=32),
        torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
    ),
    "mlp": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10)),
        torch.randn(8, 64, generator=torch.Generator().manual_seed(0)),
    ),
    "tied": (Tied, torch.arange(24).reshape(8, 3) % 11),
}


def gradients(name: str, *, copies: bool) -> tuple[float, dict[str, torch.Tensor | None]]:
    torch.manual_seed(1)
    make, inputs = CASES[name]
    model = make()
    drop_batch_counters(model)
    weights = CastWeights.of_layers(model) if copies else None
    loss = torch.zeros(())
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16), weights.in_use() if weights else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(model(inputs).float(), torch.arange(8) % 10)
        loss.backward()  # type: ignore[no-untyped-call]
        if weights is not None:
            weights.hand_over_gradients()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad  # type: ignore[operator]
    return float(loss.detach()), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", sorted(CASES))
def test_same_loss_and_gradients_as_autocast(name: str) -> None:
    expected_loss, expected = gradients(name, copies=False)
    loss, got = gradients(name, copies=True)
    assert loss == expected_loss
    for parameter, gradient in expected.items():
        other = got[parameter]
        assert gradient is not None
        assert other is not None
        assert other.dtype == torch.float32
        assert torch.equal(other, gradient), parameter


def test_the_layers_keep_their_own_weights() -> None:
    model = build_image_model("resnet20", n_classes=10, image_size=32)
    before = [id(parameter) for parameter in model.parameters()]
    weights = CastWeights.of_layers(model)
    with weights.in_use():
        assert model.head.weight.dtype == torch.bfloat16  # type: ignore[union-attr]
    with contextlib.suppress(ZeroDivisionError), weights.in_use():
        _ = 1 / 0  # a forward pass that fails
    assert [id(parameter) for parameter in model.parameters()] == before


def test_the_whole_model_in_bf16_is_the_model_in_bf16() -> None:
    """Loss and gradients of `of_all` are those of a bf16 copy of the model; micro-batches add up in float32."""
    model = Tied()
    twin = copy.deepcopy(model).to(torch.bfloat16)
    inputs, labels = CASES["tied"][1], torch.arange(8)
    weights = CastWeights.of_all(model)
    for _ in range(2):
        with weights.in_use():
            loss = nn.functional.cross_entropy(model(inputs).float(), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        weights.hand_over_gradients()
    expected = nn.functional.cross_entropy(twin(inputs).float(), labels)
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == expected.item()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert ours.dtype == torch.float32
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, 2 * theirs.grad.float())


def test_gradients_go_where_a_captured_update_reads_them() -> None:
    model = Tied()
    weights = CastWeights.of_all(model)
    owners = list(model.parameters())
    fixed = [torch.full_like(owner, 7.0) for owner in owners]
    weights.fix_gradients(owners, fixed)
    with weights.in_use():
        loss = model(CASES["tied"][1]).float().square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    weights.hand_over_gradients()
    assert all(owner.grad is tensor for owner, tensor in zip(owners, fixed, strict=True))
    assert not any(torch.equal(tensor, torch.full_like(tensor, 7.0)) for tensor in fixed)
