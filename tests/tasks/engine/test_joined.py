"""Linear layers of one input made one: the same numbers and gradients, and only where nothing else could change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from tasks.engine.transforms import join_linears


class Heads(nn.Module):
    """Query, key and value of x, and a further layer of their sum."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(6, 4, bias=bias), nn.Linear(6, 4, bias=bias)
        self.value, self.out = nn.Linear(6, 8, bias=bias), nn.Linear(4, 3, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        key, value = self.key(x), self.value(x)
        mixed: Tensor = self.out(self.query(x) * key + value[..., :4])
        total: Tensor = mixed.square().sum() + value.sum()
        return total


class Scaled(nn.Module):
    """The second layer's weight is made from the first one's output: it cannot stand where the first does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.first(x).mean()
        return nn.functional.linear(x, self.second.weight * scale, self.second.bias).sum()


def joined(model: nn.Module, inputs: Tensor, *, dynamic: bool | None = None) -> tuple[list[int], Tensor, list[Tensor]]:
    """What each graph lost, the loss, and the gradients of the compiled model."""
    removed: list[int] = []

    def backend(graph_module: GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
        removed.append(join_linears(graph_module))
        return graph_module.forward

    torch._dynamo.reset()
    loss = torch.compile(model, backend=backend, dynamic=dynamic)(inputs)
    loss.backward()
    return removed, loss, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("bias", [True, False])
def test_query_key_and_value_are_one_product_with_the_same_numbers(bias: bool) -> None:
    torch.manual_seed(0)
    model, inputs = Heads(bias=bias).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    plain = model(inputs)
    plain.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    removed, loss, gradients = joined(model, inputs)
    assert removed == [2]
    torch.testing.assert_close(loss, plain, rtol=1e-14, atol=0)
    assert len(gradients) == len(expected) == len(list(model.parameters()))
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-13, atol=1e-15)


def test_one_graph_serves_all_widths() -> None:
    torch.manual_seed(0)
    model = Heads()
    for width in (3, 5, 8):
        inputs = torch.randn(2, width, 6)
        _, loss, _ = joined(model, inputs, dynamic=True)
        torch.testing.assert_close(loss, model(inputs))


def test_a_weight_made_inside_the_graph_stays_alone() -> None:
    torch.manual_seed(0)
    model, inputs = Scaled(), torch.randn(3, 6)
    removed, loss, _ = joined(model, inputs)
    assert removed == [0]
    torch.testing.assert_close(loss, model(inputs))


def test_layers_of_other_inputs_and_with_and_without_bias_stay_apart() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return (self.a(x) + self.b(x) + self.a(x + 1)).sum()  # type: ignore[no-any-return]

    removed, _, _ = joined(Mixed(), torch.randn(2, 4))
    assert removed == [0]
