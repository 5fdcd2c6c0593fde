"""The order in which GraphStep captures and replays, with a graph that re-runs what it captured: no card needed.

The real capture is tested on a card (test_gpu.py); here every path must train exactly as eager steps do.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from admeta import KernelAdamW
from tasks.engine.graph import GraphStep
from tasks.engine.optimizers import lr_tensors
from tasks.engine.run import TrainingRun
from tasks.engine.step import StepParts
from tasks.engine.transforms import CastWeights
from tasks.registry import parse_config


class NoStream:
    def synchronize(self) -> None:
        pass


class Rerun:
    """Stands for a captured graph: replaying calls the body, which leaves gradients at the fixed addresses.

    As a graph does, it reads the memory that the weights had at the capture.
    """

    def __init__(self, step: RerunStep, body: Callable[[], None]) -> None:
        self._step, self._body = step, body
        self._weights = [p.data for p in step._trained]

    def replay(self) -> None:
        self._step.replays += 1
        if self._body == self._step._update:
            self._body()
            return
        standing = [(p, p.data, p.grad) for p in self._step._trained]
        for (p, _, _), weight in zip(standing, self._weights, strict=True):
            p.data = weight
        self._step._clear_gradients()
        self._body()
        self._step._settle_gradients()
        for p, weight, gradient in standing:
            p.data, p.grad = weight, gradient


class RerunStep(GraphStep):
    replays = 0
    refuse: tuple[str, ...] = ()

    def _settle_gradients(self) -> None:
        self._dtypes = {id(p): p.grad.dtype for p in self._trained if p.grad is not None}
        super()._settle_gradients()

    def _capture(self, body: Callable[[], None]) -> Any:
        what = "update" if body == self._update else "backward"
        if what in self.refuse:
            return None, f"{what} refused"
        if what == "backward" and self._gradients is None:
            for parameter in self._trained:
                parameter.grad = torch.zeros_like(parameter, dtype=self._dtypes[id(parameter)])
        elif what == "backward":
            for parameter, gradient in zip(self._owners, self._gradients or (), strict=True):
                parameter.grad = gradient
        return Rerun(self, body), ""


def run_with(
    rows: list[int],
    *,
    refuse: tuple[str, ...] = (),
    eager_update: str = "",
    captured: bool = True,
    make: Callable[[Any], torch.optim.Optimizer] | None = None,
    **fields: Any,
) -> tuple[torch.Tensor, Any]:
    config = parse_config({"name": "digits", "model": "mlp", **fields})
    run = TrainingRun(config, optimizer="sgdm", params={"lr": 0.05}, seed=0, device="cpu")
    if make is not None:
        run._optimizer = make(run.model.parameters())
        run._stepper = run._build_stepper()
    if captured:
        parts = StepParts(
            task=run._task,
            model=run._model,
            optimizer=run._optimizer,
            config=config,
            meter=run._meter,
            autocast=run._autocast,
            cast_weights=CastWeights.of_layers(run._model) if config.precision == "bf16" else None,
        )
        step = RerunStep(parts, stream=NoStream(), eager_update=eager_update)  # type: ignore[arg-type]
        step.refuse = refuse
        run._stepper = step
    run._model.train()
    batches = list(run._task.train_batches(seed=0, epoch=0))
    for index, n in enumerate(rows):
        micro = [{name: tensor[:n] for name, tensor in batches[index % 18].items()}] * config.accumulation
        run._stepper.run(micro)
    return torch.cat([p.detach().flatten() for p in run.model.parameters()]), run._stepper


ONE_SHAPE = [64] * 12
TURNS = [64, 40] * 10
LATE = [64] * 6 + [24, 64, 24, 24, 64, 24, 64, 24]


@pytest.mark.parametrize("rows", [ONE_SHAPE, TURNS, LATE], ids=["one", "turns", "late"])
@pytest.mark.parametrize("refuse", [(), ("update",), ("backward",)], ids=["all", "no-update", "no-backward"])
@pytest.mark.parametrize(
    "fields",
    [{}, {"grad_clip": 0.5}, {"accumulation": 2}, {"precision": "bf16"}, {"precision": "bf16", "accumulation": 2}],
    ids=["plain", "clip", "accumulate", "bf16", "bf16-accumulate"],
)
def test_every_path_trains_as_eager_steps_do(rows: list[int], refuse: tuple[str, ...], fields: dict[str, Any]) -> None:
    expected, _ = run_with(rows, captured=False, **fields)
    got, step = run_with(rows, refuse=refuse, **fields)
    assert torch.equal(got, expected)
    if refuse != ("backward",):
        assert step.replays > 0


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("rows", [ONE_SHAPE, LATE], ids=["one", "late"])
@pytest.mark.parametrize("refuse", [(), ("update",), ("backward",)], ids=["all", "no-update", "no-backward"])
def test_bf16_gradients_at_fixed_addresses(rows: list[int], refuse: tuple[str, ...]) -> None:
    """The kernels read them as autocast's float32 ones: every path, to the last bit."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        return KernelAdamW(parameters, lr=1e-2, fused=True)

    expected, _ = run_with(rows, captured=False, precision="bf16", make=make)
    got, step = run_with(rows, refuse=refuse, precision="bf16", make=make)
    assert torch.equal(got, expected)
    if refuse != ("backward",):
        assert {gradient.dtype for gradient in step._gradients} == {torch.bfloat16}


class Rebinds(torch.optim.SGD):
    """Gives the weights new memory in each step, as plain code of one's own may."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.data = p.data - self.param_groups[0]["lr"] * p.grad


class ReplacesGradients(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.grad = 0.5 * p.grad
        super().step()


class RemovesGradients(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        super().step()
        self.zero_grad(set_to_none=True)


@pytest.mark.parametrize("rows", [ONE_SHAPE, LATE], ids=["one", "late"])
@pytest.mark.parametrize(
    ("cls", "eager_update"),
    [(Rebinds, ""), (Rebinds, "no"), (ReplacesGradients, "no"), (RemovesGradients, "no")],
)
def test_an_optimizer_that_moves_memory_trains_all_the_same(cls: Any, eager_update: str, rows: list[int]) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = cls(parameters, lr=0.05)
        return made

    expected, _ = run_with(rows, captured=False, make=make)
    got, step = run_with(rows, make=make, eager_update=eager_update)
    assert torch.equal(got, expected)
    assert step.replays > 0
    if cls is Rebinds:
        assert step.status == "eager: the optimizer gives the weights new memory in each step"


def test_what_is_captured_and_counted() -> None:
    _, step = run_with(ONE_SHAPE)
    # Three eager steps, then one with replayed gradients and an eager update; the other eight replay both.
    assert (step.setup_steps, step.replays) == (4, 1 + 2 * 8)
    assert step.status == "graph: 1 shape(s)"
    _, step = run_with(TURNS)
    assert step.status == "graph: 2 shape(s)"
    _, step = run_with(ONE_SHAPE, eager_update="theirs cannot be captured")
    assert (step.setup_steps, step.replays) == (3, 9)
    assert step.status == "graph: 1 shape(s), eager update: theirs cannot be captured"
    _, step = run_with(ONE_SHAPE, refuse=("backward",))
    assert step.status == "eager: backward refused"
    assert step.setup_steps == 3


def test_many_shapes_do_not_make_many_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.engine.graph.MAX_GRAPHS", 2)
    rows = [8, 16, 24, 32] * 4
    expected, _ = run_with(rows, captured=False)
    got, step = run_with(rows)
    assert torch.equal(got, expected)
    assert step.status == "graph: 2 shape(s)"


def test_rates_in_tensors_train_as_rates_in_floats() -> None:
    """A captured update reads its learning rate from a tensor that the loop fills before each replay."""
    finals = []
    for in_tensors in (False, True):
        config = parse_config({"name": "digits", "epochs": 3, "schedule": "multistep"})
        run = TrainingRun(config, optimizer="sgdm", params={"lr": 0.05}, seed=0, device="cpu")
        if in_tensors:
            run._lrs = lr_tensors(run._optimizer, device=torch.device("cpu"))
        while not run.done:
            evaluation = run.advance()
        assert float(run._optimizer.param_groups[0]["lr"]) == pytest.approx(evaluation.lr) == pytest.approx(0.0005)
        finals.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
    torch.testing.assert_close(finals[0], finals[1], rtol=1e-3, atol=1e-5)
