"""What to use next on a task: the best results of this task, or else of alike ones, and what trainings have cost.

`search.recommendation` decides; here is what it is told, and how its answer is shown.
"""

from __future__ import annotations

from sqlalchemy import Engine

import tasks.registry
from admeta.client.models import RecommendationView, RecommendRequest
from service.database.engine import reading
from service.database.models import Study
from service.database.queries.recommend.alike import from_alike
from service.database.queries.recommend.known import costs, has_fields, known_results, objective
from service.database.queries.recommend.results import from_results
from service.database.retry import REQUEST, retried
from tasks.config import TaskConfig


@retried(REQUEST)
def recommendation(engine: Engine, asked: RecommendRequest) -> RecommendationView:
    """Which optimizer, settings and recipe to use, how sure that is, and what the hours are best spent on.

    Raises:
        UnknownTaskError: the task is not registered.
        ValidationError: the task has no such model.
    """
    config = config_of(asked)
    metric, direction = objective(config)
    of_task = Study.task == config.name, Study.model == config.model
    own = known_results(engine, *of_task, Study.metric == metric, Study.direction == direction)
    own = [one for one in own if has_fields(one, config, asked.task_fields)]
    if own:
        with reading(engine) as session:
            return from_results(session, own, asked, costs(session, config))
    found = known_results(engine)
    with reading(engine) as session:
        return from_alike(session, found, asked, config, costs(session, config))


def config_of(asked: RecommendRequest) -> TaskConfig:
    """The task's configuration with its defaults and this model. Raises as `recommendation` does."""
    return tasks.registry.parse_config(asked.task_fields)
