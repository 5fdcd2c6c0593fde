"""Own training code as users write it, and as it goes wrong. A line y = 3x + 1 is fitted to drawn points."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tasks.own.context import Context

NOT_A_FUNCTION = 3
told: list[str] = []
"""What functions told beside their reports."""


def points(n: int = 64) -> TensorDataset:
    x = torch.linspace(-1, 1, n).unsqueeze(1)
    return TensorDataset(x, 3 * x + 1)


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any]) -> None:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def loss_of(model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        x, y = points().tensors
        loss = nn.functional.mse_loss(model(x), y).item()
    model.train()
    return loss


def line(ctx: Context) -> Iterator[dict[str, float]]:
    """A plain loop: shuffles with torch's global generator, and drops with it too."""
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = ctx.optimizer(model.parameters())
    schedule = ctx.schedule(optimizer, n_steps=ctx.epochs * 8)
    loader = DataLoader(points(), batch_size=8, shuffle=True)
    try:
        for _ in ctx.resume(model=model, optimizer=optimizer, schedule=schedule):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                schedule.step()
            yield {"val_loss": loss_of(model)}
        told.append("tested")
        yield {"test_loss": loss_of(model)}
    finally:
        told.append("closed")


def reports(ctx: Context) -> None:
    """Calls back, and saves every second epoch by hand."""
    model = nn.Linear(1, 1)
    optimizer = ctx.optimizer(model.parameters())
    if (state := ctx.restored()) is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for epoch in range(ctx.epoch + 1, ctx.epochs + 1):
        fit(model, optimizer, DataLoader(points(), batch_size=8))
        if epoch % 2 == 0:
            ctx.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "note": "ok"})
        try:
            ctx.report(epoch=epoch, val_loss=loss_of(model), test_loss=0.25)
        except Exception:  # noqa: BLE001 - it must not catch a trial's end
            told.append("caught")


def forgets(ctx: Context) -> Iterator[dict[str, float]]:
    """Keeps no state."""
    for epoch in range(ctx.epochs):
        yield {"val_loss": 1.0 / (epoch + 1)}


def ends_early(ctx: Context) -> Iterator[dict[str, float]]:
    for _ in ctx.resume():
        yield {"val_loss": 0.5}
        if ctx.epoch == 2:
            return


def preempted(ctx: Context) -> Iterator[dict[str, float]]:
    """The second epoch is long, and its worker is told to stop."""
    for epoch in ctx.resume():
        if epoch == 2 and not told:
            told.append("long")
            os.kill(os.getpid(), signal.SIGTERM)
            while not ctx.stop:
                time.sleep(0.01)
            told.append("stopped")
        yield {"val_loss": 1.0 / epoch}


def empty(ctx: Context) -> None:
    """Reports nothing."""


def raises(ctx: Context) -> Iterator[dict[str, float]]:
    yield {"val_loss": 1.0}
    yield {"val_loss": bad_shapes()}


def bad_shapes() -> float:
    return float((torch.ones(2, 3) @ torch.ones(2, 3)).sum())


def diverges(ctx: Context) -> Iterator[dict[str, float]]:
    yield {"val_loss": 1.0, "val_accuracy": 0.5}
    yield {"val_loss": float("nan"), "val_accuracy": 0.5}


def returns_metrics(ctx: Context) -> dict[str, float]:
    return {"val_loss": 0.3}


def tells_a_long_integer(ctx: Context) -> Iterator[dict[str, int]]:
    yield {"val_loss": 10**400}


def returns_none_metrics(ctx: Context) -> Iterator[Any]:
    yield None


def tells_text(ctx: Context) -> None:
    ctx.report(val_loss="low")


def tells_a_bad_name(ctx: Context) -> None:
    ctx.report({"val loss": 1.0})


def tells_an_epoch_twice(ctx: Context) -> None:
    ctx.report(epoch=1, val_loss=1.0)
    ctx.report(epoch=1, val_loss=1.0)


def tells_epoch_zero(ctx: Context) -> None:
    ctx.report(epoch=0, val_loss=1.0)


def saves_a_module(ctx: Context) -> None:
    ctx.save({"model": [nn.Linear(1, 1)]})


def tells_another_metric(ctx: Context) -> None:
    ctx.report(val_accuracy=0.5)


def runs_out_of_memory(ctx: Context) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")


def no_argument() -> None: ...


class Trainer:
    """No function."""


class SilentError(Exception):
    def __str__(self) -> str:
        raise KeyError("words")


def raises_a_silent_error(ctx: Context) -> None:
    raise SilentError


def asks_for_arguments(ctx: Context) -> None:
    raise SystemExit(2)
