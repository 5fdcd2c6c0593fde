"""What is known of a task: its results, and what its trainings have cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Engine, func, select
from sqlalchemy.orm import Session

import admeta.registry
import tasks.registry
from admeta.client.models import CostView
from admeta.errors import AdmetaError
from search.recommendation import Cost
from search.states import Direction, RunState, Stage
from service.database.models import Run, Search, Study
from service.database.queries.best import BestResult, best_results, of_one_size
from service.database.queries.lookup import VOID_TAG, has_tag
from tasks.config import TaskConfig


def _is_known(optimizer: str) -> bool:
    """False where the optimizer's package was installed once, and is no more."""
    try:
        admeta.registry.get(optimizer)
    except AdmetaError:
        return False
    return True


def objective(config: TaskConfig) -> tuple[str, Direction]:
    """The task's metric and its direction; a study may have turned it round."""
    info = tasks.registry.get(config.name)
    return info.default_metric, Direction(info.metrics[info.default_metric])


def known_results(engine: Engine, *where: ColumnElement[bool]) -> list[BestResult]:
    """Results that speak for an optimizer: none of an ablation, and none of a study with the tag void."""
    found = best_results(engine, ~has_tag(VOID_TAG), *where)
    return [
        one
        for one in found
        if one.variant is None and one.best.validation.mean is not None and _is_known(one.best.optimizer)
    ]


def has_fields(one: BestResult, config: TaskConfig, fields: Collection[str]) -> bool:
    """Whether the result is of this task, with these of its fields as they are here, such as `data_dir`."""
    asked = config.model_dump(mode="json", include={"name", "model", *fields})
    return all(one.best.task_config.get(field) == value for field, value in asked.items())


@dataclass(frozen=True, kw_only=True)
class Paid:
    """What the runs of one recipe have cost in seconds, and their epochs."""

    seconds: float
    n_epochs: int
    n_runs: int
    trial_s: float | None
    in_gpu: bool


def costs(session: Session, config: TaskConfig) -> dict[str | None, Paid]:
    """By recipe of this task and model, of one size. Runs that took over another one's curve trained nothing."""
    searched = Run.stage == Stage.SEARCH
    seconds = func.sum(Run.train_s + Run.eval_s)
    query = (
        select(
            Study.recipe,
            func.sum(Run.n_epochs).label("n_epochs"),
            func.count().label("n_runs"),
            seconds.label("train_s"),
            func.sum(Run.gpu_s).label("gpu_s"),
            func.avg(Run.train_s + Run.eval_s).filter(searched).label("trial_s"),
            func.avg(Run.gpu_s).filter(searched).label("trial_gpu_s"),
        )
        .join(Search, Search.study_id == Study.id)
        .join(Run, Run.search_id == Search.id)
        .where(Study.task == config.name, Study.model == config.model, of_one_size())
        .where(Run.n_epochs > 0, Run.state.in_((RunState.COMPLETE, RunState.PRUNED)))
        .group_by(Study.recipe)
    )
    paid = {}
    for row in session.execute(query):
        in_gpu = row.gpu_s > 0
        paid[row.recipe] = Paid(
            seconds=row.gpu_s if in_gpu else row.train_s,
            n_epochs=row.n_epochs,
            n_runs=row.n_runs,
            trial_s=row.trial_gpu_s if in_gpu else row.trial_s,
            in_gpu=in_gpu,
        )
    return paid


def cost_of(paid: Paid | None, config: Mapping[str, Any], epochs: int | None) -> tuple[CostView, Cost] | None:
    """Of a training of so many epochs, in hours; None where nothing is known of the recipe."""
    if paid is None or not paid.seconds or not epochs:
        return None
    epoch_s = paid.seconds / paid.n_epochs
    training = epoch_s * epochs / 3600
    trial = training if paid.trial_s is None else min(training, paid.trial_s / 3600)
    view = CostView(
        epoch_s=epoch_s,
        training_hours=training,
        trial_hours=trial,
        in_gpu_hours=paid.in_gpu,
        n_runs=paid.n_runs,
    )
    return view, Cost(training_hours=training, trial_hours=trial)
