"""What a run's curve becomes when its worker reports: new points, and points that were trained once more.

An attempt goes on from its run's last checkpoint, which is often older than the last point stored. What it trains again
takes the place of what was stored, since the rest of the curve builds on it, and costs once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from search.records import Point, RunRecord


def changed(points: Sequence[Point], *, stored: Sequence[Point]) -> list[Point]:
    """Those of the reported points, by epoch, that are not stored yet or are another training's than the stored one."""
    known = {point.epoch: point for point in stored}
    by_epoch = {point.epoch: point for point in points}
    return [
        point
        for epoch, point in sorted(by_epoch.items())
        if epoch not in known or _training(point) != _training(known[epoch])
    ]


def advanced(run: RunRecord, points: Sequence[Point]) -> RunRecord:
    """The run with these points on its curve: as far as its farthest point, at the cost of all that was trained."""
    last = max(points, key=lambda point: point.epoch)
    farther = last.epoch >= run.epoch
    return replace(
        run,
        epoch=last.epoch if farther else run.epoch,
        step=last.step if farther else run.step,
        value=last.value,
        cost=sum((point.cost for point in points), run.cost),
        n_epochs=run.n_epochs + (len(points) if run.attempt else 0),
    )


def copied(points: Sequence[Point]) -> list[Point]:
    """The curve as another run of the same configuration takes it over: no card was held for it again."""
    return [replace(point, cost=replace(point.cost, gpu_s=0.0)) for point in points]


def _training(point: Point) -> tuple[Any, ...]:
    """What no two trainings of an epoch share: how long it took, besides what came out of it."""
    return point.step, point.value, point.cost.train_s, point.cost.eval_s, point.cost.gpu_s
