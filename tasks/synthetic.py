"""Runs on toy surfaces: no data, no model; the surfaces, and an optimizer's descent on them.

A surface starts from a point drawn by the seed and is minimised by the trial's own optimizer. `idle` makes no steps and
scores by a formula, a parabola over log10(lr) around −2. torch is imported when something is computed.

quadratic        0.5·(x² + 25 y²)                   a valley with condition number 25
rosenbrock       (1 − x)² + 100·(y − x²)²           Rosenbrock, Computer Journal 3 (1960)
noisy_quadratic  0.5·Σ aᵢ xᵢ², a = 1/i, gradient noise of variance aᵢ    Zhang et al., NeurIPS 2019
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from tasks.config import Count, Epochs, Number, TaskConfig
from tasks.engine.protocol import Cost, Evaluation, Progress
from tasks.engine.seeds import derive_seed
from tasks.errors import Diverged

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.optim import Optimizer


class SyntheticConfig(TaskConfig):
    """A surface, the optimizer steps of an epoch, and the seconds that each epoch sleeps."""

    models: ClassVar[tuple[str, ...]] = ("idle", "quadratic", "rosenbrock", "noisy_quadratic")
    same_for_all: ClassVar[frozenset[str]] = TaskConfig.same_for_all | {
        *("batch_size", "accumulation", "grad_clip", "label_smoothing", "weight_decay_on"),
        *("steps_per_epoch", "sleep_s"),
    }

    name: Literal["synthetic"] = "synthetic"
    model: str = Field("quadratic", description="idle: no steps at all, a score by formula, without torch")
    epochs: Epochs = 10
    batch_size: Count = Field(1, ge=1, le=1)
    steps_per_epoch: Count = Field(20, ge=1, le=1_000_000, description="optimizer steps; idle makes none")
    sleep_s: Number = Field(0.0, ge=0.0, le=3600.0, description="seconds slept in each epoch")


class SyntheticRun(Progress):
    """A `tasks.engine.protocol.Run` on a toy surface."""

    def __init__(
        self,
        config: SyntheticConfig,
        *,
        optimizer: str,
        params: Mapping[str, Any],
        seed: int,
        data_dir: Path | None = None,
        device: str | None = None,
        threads: int = 1,
        init_from: Path | None = None,
    ) -> None:
        """Args: as `tasks.runs.open_run`; the surfaces live on the CPU and ignore data_dir, device and init_from."""
        del data_dir, device, init_from, threads
        super().__init__(config, optimizer=optimizer, params=params, seed=seed)
        self._config = config
        self._params = dict(params)
        self._seed = seed
        self._descent: Descent | None = None
        if config.model != "idle":
            self._descent = Descent(SURFACES[config.model], optimizer=optimizer, params=params, seed=seed)

    @property
    def step_status(self) -> str:
        """There is no network whose steps could be captured."""
        return "eager: a toy surface"

    def advance(self) -> Evaluation:
        """Make `steps_per_epoch` steps, then sleep `sleep_s`; raises Diverged when the loss is no longer finite."""
        self._check_budget()
        begin = time.perf_counter()
        lr = float(self._params.get("lr", 0.01))
        if self._descent is None:
            loss = self._idle_loss(lr)
            self._step += 1
        else:
            n_steps = self._config.epochs * self._config.steps_per_epoch
            for _ in range(self._config.steps_per_epoch):
                lr = self._descent.step(self._config.schedule.lr_factor(self._step, n_steps=n_steps))
                self._step += 1
                if not math.isfinite(loss := self._descent.loss()):
                    raise Diverged(self._step, loss=loss)
        if self._config.sleep_s:
            time.sleep(self._config.sleep_s)
        self._epoch += 1
        train_s = time.perf_counter() - begin
        return Evaluation(
            epoch=self._epoch,
            step=self._step,
            metrics={"val_score": 1.0 / (1.0 + loss), "val_loss": loss, "train_loss": loss},
            lr=lr,
            cost=Cost(train_s=train_s),
        )

    def _idle_loss(self, lr: float) -> float:
        """A parabola over log10(lr), lower with every epoch, with a little noise from the seed."""
        noise = 0.01 * random.Random(derive_seed(self._seed, "idle", self._epoch)).random()
        return (math.log10(max(lr, 1e-12)) + 2.0) ** 2 + 1.0 / (self._epoch + 1) + noise

    def test(self) -> dict[str, float]:
        """The surface has no second sample: the loss at the current point."""
        loss = self._idle_loss(float(self._params.get("lr", 0.01))) if self._descent is None else self._descent.loss()
        return {"test_score": 1.0 / (1.0 + loss), "test_loss": loss}

    def environment(self) -> dict[str, Any]:
        return {"device": "cpu", "step": self.step_status}

    def state_dict(self) -> dict[str, Any]:
        state = None if self._descent is None else self._descent.state_dict()
        return {**self._place(), "walk": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; raises CheckpointError for another surface or optimizer."""
        self._return_to(state)
        if self._descent is not None:
            self._descent.load_state_dict(state["walk"])

    def close(self) -> None:
        self._descent = None


NOISY_DIM = 20


@dataclass(frozen=True, kw_only=True)
class Surface:
    """A function to minimise.

    Attributes:
        value: of points (dim, …), a tensor (…).
        dim: coordinates of a point.
        noise_scale: standard deviation of each coordinate's gradient noise at a point; None where there is none.
        minimum: where its least value 0 lies, first two coordinates.
        start: a place to start from, first two coordinates.
        window: (x low, x high, y low, y high) that shows the way from there.
    """

    name: str
    title: str
    value: Callable[[Tensor], Tensor]
    dim: int = 2
    noise_scale: Callable[[Tensor], Tensor] | None = None
    minimum: tuple[float, float] = (0.0, 0.0)
    start: tuple[float, float]
    window: tuple[float, float, float, float]


def _noisy_curvature(point: Tensor) -> Tensor:
    import torch

    return 1.0 / torch.arange(1, point.shape[0] + 1, dtype=point.dtype).reshape(-1, *[1] * (point.ndim - 1))


SURFACES: dict[str, Surface] = {
    surface.name: surface
    for surface in (
        Surface(
            name="quadratic",
            title="Quadratic valley",
            value=lambda p: 0.5 * (p[0] ** 2 + 25.0 * p[1] ** 2),
            start=(-1.0, 0.6),
            window=(-1.4, 1.4, -1.05, 1.05),
        ),
        Surface(
            name="rosenbrock",
            title="Rosenbrock",
            value=lambda p: (1.0 - p[0]) ** 2 + 100.0 * (p[1] - p[0] ** 2) ** 2,
            minimum=(1.0, 1.0),
            start=(-1.2, 1.0),
            window=(-1.8, 1.8, -0.9, 1.8),
        ),
        Surface(
            name="noisy_quadratic",
            title="Noisy quadratic",
            value=lambda p: 0.5 * (_noisy_curvature(p) * p**2).sum(0),
            dim=NOISY_DIM,
            noise_scale=lambda p: _noisy_curvature(p).sqrt(),
            start=(-3.0, 2.2),
            window=(-4.0, 4.0, -3.0, 3.0),
        ),
    )
}


def heights(surface: Surface, xs: Sequence[float], ys: Sequence[float]) -> list[list[float]]:
    """The surface over a grid of its first two coordinates, the others at the minimum.

    Returns:
        A row for each y, with a value for each x.
    """
    import torch

    y, x = torch.meshgrid(torch.tensor(ys), torch.tensor(xs), indexing="ij")
    points = torch.zeros(surface.dim, *x.shape)
    points[0], points[1] = x, y
    values: list[list[float]] = surface.value(points).tolist()
    return values


@cache
def largest_curvature(name: str) -> float:
    """Largest eigenvalue of a surface's Hessian at its minimum."""
    import torch

    surface = SURFACES[name]
    point = torch.zeros(surface.dim)
    point[:2] = torch.tensor(surface.minimum)
    hessian = torch.autograd.functional.hessian(surface.value, point)  # type: ignore[no-untyped-call]
    return float(torch.linalg.eigvalsh(hessian)[-1])


Position = tuple[float, float, float]
"""First two coordinates and the loss there."""


class Descent:
    """A point on a surface and the optimizer that moves it.

    Args:
        optimizer, params: as a trial names them.
        seed: of the gradient noise, and of the start where none is given.
        start: coordinates to begin at; by default drawn from [−1, 1).
    """

    def __init__(
        self,
        surface: Surface,
        *,
        optimizer: str,
        params: Mapping[str, Any],
        seed: int,
        start: Sequence[float] | None = None,
    ) -> None:
        import torch

        self._surface = surface
        self._noise = torch.Generator().manual_seed(derive_seed(seed, "noise"))
        if start is None:
            generator = torch.Generator().manual_seed(derive_seed(seed, "start"))
            point = torch.rand(surface.dim, generator=generator) * 2.0 - 1.0
        else:
            point = torch.tensor(start)
        self._point = torch.nn.Parameter(point)
        self._optimizer = _optimizer_of(self._point, optimizer, params)
        self._lrs = [group["lr"] for group in self._optimizer.param_groups]

    def loss(self) -> float:
        return float(self._surface.value(self._point.detach()))

    def position(self) -> Position:
        x, y = self._point.detach()[:2].tolist()
        return x, y, self.loss()

    def step(self, factor: float = 1.0) -> float:
        """One optimizer step at `factor` times the learning rate; returns that rate."""
        import torch

        for group, lr in zip(self._optimizer.param_groups, self._lrs, strict=True):
            group["lr"] = lr * factor
        self._optimizer.zero_grad()
        loss = self._surface.value(self._point)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._surface.noise_scale is not None and self._point.grad is not None:
            scale = self._surface.noise_scale(self._point.detach())
            self._point.grad += scale * torch.randn(self._surface.dim, generator=self._noise)
        self._optimizer.step()
        return float(self._lrs[0]) * factor

    def state_dict(self) -> dict[str, Any]:
        return {
            "point": self._point.detach().clone(),
            "optimizer": self._optimizer.state_dict(),
            "noise": self._noise.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._point.data.copy_(state["point"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._noise.set_state(state["noise"])


def trajectory(descent: Descent, *, n_steps: int) -> Iterator[Position]:
    """The positions before the first step and after each; ends before the first that is not finite."""
    yield descent.position()
    for _ in range(n_steps):
        descent.step()
        position = descent.position()
        if not all(math.isfinite(number) for number in position):
            return
        yield position


def updates(optimizer: str, params: Mapping[str, Any], gradients: Sequence[float]) -> list[float]:
    """The steps that an optimizer makes for a series of gradients of one parameter: −(change) at each.

    The parameter is a scalar in float64 that starts at 0.
    """
    import torch

    point = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    made = _optimizer_of(point, optimizer, params)
    path = [0.0]
    for gradient in gradients:
        point.grad = torch.full_like(point, gradient)
        made.step()
        path.append(point.item())
    return [before - after for before, after in pairwise(path)]


def _optimizer_of(point: Parameter, name: str, params: Mapping[str, Any]) -> Optimizer:
    """The optimizer of one parameter, in a process of one thread that imports no compiler."""
    import torch

    from admeta import registry
    from tasks.engine.lazy_compiler import defer_compiler

    defer_compiler()
    torch.set_num_threads(1)
    return registry.create(name, [("point", point)], **params)
