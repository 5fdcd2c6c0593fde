"""bf16 gradients that go into the fused update as they are: the parameters are those of widened ones, to the last bit.

On a machine without a card the kernels run in Triton's interpreter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

import admeta
from tasks.engine import step as engine_step
from tasks.engine.graph import GraphStep
from tasks.engine.optimizers import lr_tensors
from tasks.engine.step import EagerStep, LossMeter, Ranks, StepParts, _total_norm
from tasks.engine.transforms import GRADIENTS_MAY_BE_NARROW, CastWeights
from tasks.registry import parse_config

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adamw": lambda p: admeta.KernelAdamW(p, lr=1e-2, weight_decay=0.1, fused=True),
    "adam": lambda p: admeta.KernelAdam(p, lr=1e-2, weight_decay=0.1, fused=True),
    "radam": lambda p: admeta.KernelRAdam(p, lr=1e-2, weight_decay=0.1, fused=True),
    "admetar": lambda p: admeta.AdmetaR(p, lr=1e-2, fused=True),
    "admetas": lambda p: admeta.AdmetaS(p, lr=1e-2, weight_decay=0.1, fused=True),
    "ranger": lambda p: admeta.Ranger(p, lr=1e-2, fused=True),  # centralises the gradients
}
pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(not GRADIENTS_MAY_BE_NARROW, reason="needs torch 2.10"),
]


class Words(nn.Module):
    """An embedding that is also the output layer's weight, a norm, a layer without a use: of the parts of a BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(37, 16)
        self.body = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 37)
        self.out.weight = self.embed.weight
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.norm(torch.relu(self.body(self.embed(x)))))
        return logits


class Copying:
    """As much of a task as a step needs."""

    @staticmethod
    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = nn.functional.cross_entropy(model(batch["x"]).flatten(0, 1).float(), batch["x"].flatten())
        return loss

    @staticmethod
    def loss_terms(batch: dict[str, torch.Tensor]) -> None:
        """As many as rows."""


def parts_of(make: MakeOptimizer, *, copies: str = "of_all", ranks: Ranks | None = None, **fields: Any) -> StepParts:
    torch.manual_seed(0)
    model = Words().to(DEVICE)
    of_layers = contextlib.nullcontext if copies == "of_all" else lambda: torch.autocast(DEVICE, dtype=torch.bfloat16)
    return StepParts(
        task=Copying(),  # type: ignore[arg-type]
        model=model,
        optimizer=make(model.parameters()),
        config=parse_config({"name": "digits", "precision": "bf16", **fields}),
        meter=LossMeter(torch.device(DEVICE)),
        autocast=of_layers,
        cast_weights=getattr(CastWeights, copies)(model),
        ranks=ranks or Ranks(),
    )


def trained(parts: StepParts, steps: int = 8) -> tuple[list[torch.Tensor], set[torch.dtype]]:
    """The parameters after some steps, and the gradients' dtypes before the updates."""
    seen: set[torch.dtype] = set()

    def look(*_: Any) -> None:
        seen.update(p.grad.dtype for p in parts.model.parameters() if p.grad is not None)

    parts.optimizer.register_step_pre_hook(look)
    step = EagerStep(parts, status="")
    for index in range(steps):
        draws = torch.Generator().manual_seed(index)
        step.run([{"x": torch.randint(37, (4, 5), generator=draws).to(DEVICE)}] * parts.config.accumulation)
    return [p.detach() for p in parts.model.parameters()], seen


def assert_same(narrow: list[torch.Tensor], wide: list[torch.Tensor], *, clipped: bool) -> None:
    """To the last bit; or nearly, as the norm that clips is a sum that may be taken in another order."""
    for one, other in zip(narrow, wide, strict=True):
        if clipped:
            assert (one - other).norm() <= 1e-2 * other.norm()
        else:
            assert torch.equal(one, other)


@pytest.mark.parametrize("clip", [None, 0.05, 1e6], ids=["free", "clipped", "within"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_are_those_of_widened_gradients(
    name: str, clip: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, Any] = {} if clip is None else {"grad_clip": clip}
    narrow, dtypes = trained(parts_of(OPTIMIZERS[name], **fields))
    assert dtypes == {torch.bfloat16}
    monkeypatch.setattr(engine_step, "GRADIENTS_MAY_BE_NARROW", False)
    wide, dtypes = trained(parts_of(OPTIMIZERS[name], **fields))
    assert dtypes == {torch.float32}
    assert_same(narrow, wide, clipped=clip == 0.05)


def test_beside_gradients_that_autocast_leaves_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, dtypes = trained(parts_of(OPTIMIZERS["adamw"], copies="of_layers", grad_clip=1e6))
    assert dtypes == {torch.bfloat16, torch.float32}
    monkeypatch.setattr(engine_step, "GRADIENTS_MAY_BE_NARROW", False)
    wide, _ = trained(parts_of(OPTIMIZERS["adamw"], copies="of_layers", grad_clip=1e6))
    assert all(torch.equal(one, other) for one, other in zip(narrow, wide, strict=True))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (OPTIMIZERS["adamw"], {"accumulation": 2}),
        (OPTIMIZERS["adamw"], {"ranks": Ranks(rank=0, n=2)}),
        (lambda p: admeta.KernelAdamW(p, foreach=True), {}),
        (lambda p: torch.optim.AdamW(p), {}),
    ],
    ids=["accumulated", "averaged over ranks", "without kernels", "torch's optimizer"],
)
def test_where_gradients_are_widened(make: MakeOptimizer, options: dict[str, Any]) -> None:
    parts = parts_of(make, **options)
    assert not parts.update_reads_narrow_gradients()
    if parts.ranks.n == 1:
        assert trained(parts, steps=2)[1] == {torch.float32}


def test_one_group_without_kernels_widens_all() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        first, *rest = parameters
        return admeta.AdmetaR([{"params": [first], "fused": False}, {"params": rest}], fused=True)

    assert not parts_of(make).update_reads_narrow_gradients()


def test_a_model_may_go_back_to_widened_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a checkpoint is loaded the run makes a new step on the same parameters."""
    parts = parts_of(OPTIMIZERS["adamw"])
    trained(parts, steps=2)
    monkeypatch.setattr(engine_step, "GRADIENTS_MAY_BE_NARROW", False)
    again = StepParts(**{**vars(parts), "cast_weights": CastWeights.of_all(parts.model)})
    assert trained(again, steps=2)[1] == {torch.float32}


def test_the_norm_of_bf16_gradients_is_not_rounded() -> None:
    draws = torch.Generator().manual_seed(0)
    wide = [torch.randn(n, generator=draws).to(DEVICE) for n in (7, 4099, 1, 130)]
    narrow = [tensor.to(torch.bfloat16) for tensor in wide]
    exact = torch.cat([tensor.double() for tensor in narrow]).norm()
    assert _total_norm(narrow).dtype == torch.float32
    assert abs(_total_norm(narrow).double() / exact - 1) < 1e-6
    mixed = [*narrow[:2], *[tensor.float() for tensor in narrow[2:]]]
    assert abs(_total_norm(mixed).double() / exact - 1) < 1e-6
    assert torch.equal(_total_norm(wide), nn.utils.get_total_norm(wide))
    assert _total_norm([tensor.double() for tensor in wide]).dtype == torch.float64


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("clip", [None, 0.05], ids=["free", "clipped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_in_graphs_of_two_shapes(name: str, clip: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    finals = []
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    fields: dict[str, Any] = {} if clip is None else {"grad_clip": clip}
    for narrow in (True, False):
        monkeypatch.setattr(engine_step, "GRADIENTS_MAY_BE_NARROW", narrow)
        with torch.cuda.stream(stream):
            parts = parts_of(OPTIMIZERS[name], **fields)
            for group in parts.optimizer.param_groups:
                group["capturable"] = True
            lr_tensors(parts.optimizer, device=torch.device(DEVICE))
            step = GraphStep(parts, stream=stream)
            for index in range(24):
                draws = torch.Generator().manual_seed(index)
                step.run([{"x": torch.randint(37, (4 + index % 2, 5), generator=draws).to(DEVICE)}])
            assert step.status == "graph: 2 shape(s)"
            assert step._gradients is not None
            assert {g.dtype for g in step._gradients} == {torch.bfloat16 if narrow else torch.float32}
            finals.append([p.detach().clone() for p in parts.model.parameters()])
            step.close()
        stream.synchronize()
    assert_same(*finals, clipped=clip is not None)
