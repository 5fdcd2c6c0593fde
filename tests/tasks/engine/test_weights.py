"""bf16 copies of the weights: the same numbers as autocast makes, to the last bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tasks.engine.norms import drop_batch_counters
from tasks.engine.weights import CastWeights
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
    weights = CastWeights(model) if copies else None
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
    weights = CastWeights(model)
    with weights.in_use():
        assert model.head.weight.dtype == torch.bfloat16  # type: ignore[union-attr]
    with contextlib.suppress(ZeroDivisionError), weights.in_use():
        _ = 1 / 0  # a forward pass that fails
    assert [id(parameter) for parameter in model.parameters()] == before
