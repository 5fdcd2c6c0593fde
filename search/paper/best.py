"""`paper-best`: searches that begin with the paper's best settings of their task, model and optimizer.

Owns which settings those are, the space around them, and whether a space holds them. Does not own how a definition
asks for it (search.definition).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from admeta.info import OptimInfo
from search.errors import SearchError
from search.paper.setups import PaperSettings, all_settings, best_settings, model_id, paper_models
from search.space import CategoricalParameter, IntParameter, Parameter, Space, fit

PAPER_BEST = "paper-best"


def known_best(*, task: str, model: str, optimizer: str) -> PaperSettings:
    """The paper's best settings.

    Raises:
        SearchError: it prints none; the message lists those that it has nearest to what was asked.
    """
    found = best_settings(task=task, model=model, optimizer=optimizer)
    if found is not None:
        return found
    rows = [row for row in all_settings() if row.task == task]
    what = f"the paper prints no settings of {optimizer} on {task} with {model}"
    if not rows:
        raise SearchError(f"{what}; it has {', '.join(dict.fromkeys(row.task for row in all_settings()))}")
    same_model = [row.optimizer for row in rows if row.model == model_id(model)]
    if same_model:
        raise SearchError(f"{what}; there it has {', '.join(same_model)}")
    models = dict.fromkeys(name for row in rows for name in paper_models()[row.model].ours)
    raise SearchError(f"{what}; on {task} it has the models {', '.join(models)}")


def space_around(best: PaperSettings, base: Space) -> Space:
    """What the paper searched, over the range that `base` has for it, widened where the paper's value lies outside."""
    return {name: _reaching(base.get(name), value) for name, value in best.params.items()}


def first_trial(best: PaperSettings, *, info: OptimInfo, space: Space, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of `space` with which a trial has the paper's best settings; what they don't say has its default.

    Raises:
        SearchError: no trial of this space can have them.
    """
    defaults = {name: _plain(parameter.default) for name, parameter in info.parameters.items()}
    wanted = {**{name: defaults[name] for name in space}, **best.arguments}
    first = {name: value for name, value in wanted.items() if name in space}
    for name, value in wanted.items():
        if name in space:
            if name not in fit(first, space):
                raise SearchError(_misses(best, name, value, "which this space does not hold"))
        elif (held := _plain(fixed.get(name, defaults[name]))) != value:
            raise SearchError(_misses(best, name, value, f"but here it is held at {held!r}"))
    return first


def _misses(best: PaperSettings, name: str, value: Any, what: str) -> str:
    return (
        f"the paper's best settings of {best.optimizer} on {best.task} with {best.model} have {name} = {value!r}, "
        f"{what}. Leave 'space' and 'fixed' out for the paper's own, or change them"
    )


def _reaching(parameter: Parameter | None, value: float) -> Parameter:
    match parameter:
        case None:
            return CategoricalParameter(type="categorical", choices=[value])
        case CategoricalParameter():
            if value in parameter.choices:
                return parameter
            return parameter.model_copy(update={"choices": [*parameter.choices, value]})
        case IntParameter():
            return parameter.model_copy(
                update={"low": min(parameter.low, int(value)), "high": max(parameter.high, int(value))}
            )
        case _:
            return parameter.model_copy(update={"low": min(parameter.low, value), "high": max(parameter.high, value)})


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
