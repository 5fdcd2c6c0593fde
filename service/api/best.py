"""The best settings known for a task and an optimizer, over all studies."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from service.api.catalog import known_optimizer, known_task
from service.api.dependencies import Database, Filters
from service.api.errors import ApiError
from service.database import queries
from service.models import BestView, ErrorView, FieldError

router = APIRouter(prefix="/v1", tags=["best"])


class BestFilters(Filters):
    """Best of what."""

    task: str = Field(max_length=100, description="A name from GET /v1/tasks.")
    optimizer: str = Field(max_length=100, description="A name from GET /v1/optimizers.")
    model: str | None = Field(default=None, max_length=200, description="Only studies of this model.")
    metric: str | None = Field(default=None, max_length=100, description="Default: the task's own.")


@router.get("/best", responses={404: {"model": ErrorView}})
def get_best(engine: Database, filters: Annotated[BestFilters, Query()]) -> BestView:
    """The best settings known; `settings` constructs the optimizer: `cls(parameters, **settings)`."""
    info = known_task(filters.task, status=422)
    known_optimizer(filters.optimizer, status=422)
    metric = filters.metric or info.default_metric
    if metric not in info.metrics:
        rule = f"task '{info.name}' has the metrics {', '.join(sorted(info.metrics))}"
        raise ApiError(
            422,
            "unknown_metric",
            f"metric = '{metric}': {rule}.",
            hint="Leave it out for the task's own.",
            fields=[FieldError(field="metric", value=metric, rule=rule)],
        )
    found = queries.best(engine, task=info.name, optimizer=filters.optimizer, model=filters.model, metric=metric)
    if found is None:
        of_model = f" with model '{filters.model}'" if filters.model else ""
        raise ApiError(
            404,
            "no_result",
            f"no finished trial of optimizer '{filters.optimizer}' on task '{info.name}'{of_model} yet.",
            hint="Submit a study with both (POST /v1/studies), or wait for its first trial.",
        )
    return found
