"""The edge of a search space: what is told, what is not, and that the wider space is one that the service takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from search.definition import StudyDefinition
from search.edge import Edge, End, Searched, _beyond, edges, gets_better_towards, widened
from search.space import FloatParameter, IntParameter
from search.states import Direction

LR = {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}
DECAY = {"type": "float", "low": 0, "high": 0.1}
UNIT = FloatParameter(type="float", low=0, high=1)


def definition(**space: Any) -> StudyDefinition:
    optimizers = [{"name": "sgdm"}, {"name": "adamw", "space": space or {"lr": LR, "weight_decay": DECAY}}]
    return StudyDefinition.model_validate({"name": "digits", "task": "digits", "optimizers": optimizers})


def searched(value: Callable[[float, float], float | None], *, n: int = 30, seed: int = 0) -> Searched:
    """A random search of lr and weight decay, each by its place from 0 to 1."""
    rng = np.random.default_rng(seed)
    trials = []
    for x, y in [*rng.random((n, 2)), (0.99, 0.01)]:
        trials.append(({"lr": 1e-4 * 100**x, "weight_decay": 0.1 * y}, value(x, y)))
    best = max(trials, key=lambda trial: -math.inf if trial[1] is None else trial[1])[0]
    return Searched(label="adamw", best=best, trials=trials)


def test_a_best_value_at_the_end_is_told_with_a_wider_space() -> None:
    study = definition()
    (edge,) = edges(study, [searched(lambda x, y: x - y)])  # weight_decay 0 is a hard bound
    assert edge == Edge(
        label="adamw", parameter="lr", value=1e-4 * 100**0.99, end="high", bound=0.01, wider=0.1,
        change="optimizers.1.space.lr.high=0.1",
    )  # fmt: skip
    assert edge.sentence == (
        "adamw: the best lr = 0.00955 lies at the upper end of its space, 0.01, and trials get better towards it. "
        "A wider space ends at 0.1"
    )
    wider = widened(study, [edge])
    assert wider.name == "digits-wider"
    assert wider.optimizers[1].space["lr"].end_points() == [1e-4, 0.1]
    changed = study.to_json()
    changed["optimizers"][1]["space"]["lr"]["high"] = 0.1
    assert wider.to_json() == {**changed, "name": "digits-wider"}


def test_nothing_is_told_where_the_best_is_within() -> None:
    assert edges(definition(), [searched(lambda x, y: -((x - 0.5) ** 2) - (y - 0.5) ** 2)]) == []


def test_nothing_is_told_where_trials_get_no_better_towards_the_end() -> None:
    """The best trial is at the end by luck: the values have their optimum in the middle."""
    assert edges(definition(), [searched(lambda x, y: 1.0 if x == 0.99 else -((x - 0.5) ** 2))]) == []


def test_divergence_near_the_end_is_no_improvement() -> None:
    assert edges(definition(), [searched(lambda x, y: None if 0.7 < x < 0.98 else x - y)]) == []


def test_too_few_trials_tell_nothing() -> None:
    assert edges(definition(), [searched(lambda x, y: x - y, n=6)]) == []


def test_smaller_is_better_where_the_study_minimizes() -> None:
    seen = [(x, 1 - x) for x in np.linspace(0, 1, 12)]
    assert gets_better_towards(UNIT, "high", seen, direction=Direction.MINIMIZE)
    assert not gets_better_towards(UNIT, "high", seen, direction=Direction.MAXIMIZE)
    assert gets_better_towards(UNIT, "low", seen, direction=Direction.MAXIMIZE)


def test_one_value_alone_has_no_slope() -> None:
    assert not gets_better_towards(UNIT, "high", [(1.0, float(i)) for i in range(12)], direction=Direction.MAXIMIZE)


def test_a_bound_is_widened_as_far_as_the_optimizer_takes_values() -> None:
    """betas lie below 1: of 0.5, 0.25 and 0.1 of the range [0.5, 0.9], only the last stays below."""
    space = {"lr": LR, "lambd": {"type": "float", "low": 0.2, "high": 0.92}}
    raw = {"name": "d", "task": "digits", "optimizers": [{"name": "admetar", "space": space}]}
    trials = [({"lr": 1e-3, "lambd": 0.2 + 0.72 * i / 19}, float(i)) for i in range(20)]
    (edge,) = edges(StudyDefinition.model_validate(raw), [Searched(label="admetar", best=trials[-1][0], trials=trials)])
    assert (edge.parameter, edge.wider) == ("lambd", 0.992)


@pytest.mark.parametrize(
    ("parameter", "end", "wider"),
    [
        ({"type": "float", "low": 0.1, "high": 0.3, "step": 0.05}, "high", 0.4),
        ({"type": "float", "low": 0.2, "high": 0.3, "step": 0.05}, "low", 0.15),
        ({"type": "float", "low": 0.2, "high": 0.4}, "low", 0.1),
    ],
)
def test_steps_stay_steps(parameter: dict[str, Any], end: str, wider: float) -> None:
    study = definition(lr=LR, weight_decay=parameter)
    value = FloatParameter.model_validate(parameter)
    sign = 1 if end == "high" else -1
    trials = [
        (
            {"lr": 1e-3, "weight_decay": value.low + (value.high - value.low) * (i % 3) / 2},
            float(sign * (i % 3)) + i / 100,
        )
        for i in range(12)
    ]
    best = max(trials, key=lambda trial: trial[1])[0]
    (edge,) = edges(study, [Searched(label="adamw", best=best, trials=trials)])
    assert edge.end == end
    assert edge.wider == pytest.approx(wider)


def test_integers_stay_integers() -> None:
    space = {"lr": LR, "k": {"type": "int", "low": 2, "high": 9, "log": True}}
    raw = {"name": "d", "task": "digits", "optimizers": [{"name": "ranger", "space": space}]}
    trials = [({"lr": 1e-3, "k": 2 + i % 8}, float(i % 8)) for i in range(24)]
    (edge,) = edges(StudyDefinition.model_validate(raw), [Searched(label="ranger", best=trials[7][0], trials=trials)])
    assert (edge.wider, IntParameter.model_validate(space["k"]).high) == (20, 9)
    assert isinstance(edge.wider, int)


def test_choices_have_no_edge() -> None:
    study = definition(lr={"type": "categorical", "choices": [1e-3, 1e-2]})
    trials = [({"lr": lr}, lr) for lr in (1e-3, 1e-2) * 6]
    assert edges(study, [Searched(label="adamw", best={"lr": 1e-2}, trials=trials)]) == []


@pytest.mark.parametrize(("optimum", "most"), [(0.5, 0.005), (0.8, 0.035), (None, 0.06)])
def test_warnings_for_nothing_are_rare(optimum: float | None, most: float) -> None:
    """400 random searches of 20 trials; `python -m benchmarks.answers edge` has all figures."""
    rng = np.random.default_rng(3)
    n_warned = 0
    for _ in range(400):
        x = rng.random(20)
        y = 0.1 * rng.standard_normal(20) - (0 if optimum is None else (x - optimum) ** 2)
        best = x[y.argmax()]
        end: End | None = "high" if best >= 0.95 else "low" if best <= 0.05 else None
        if end is not None:
            n_warned += gets_better_towards(UNIT, end, list(zip(x, y, strict=True)), direction=Direction.MAXIMIZE)
    assert n_warned <= most * 400


def test_a_value_outside_the_space_is_at_no_end() -> None:
    """Trials taken from elsewhere may have one."""
    found = searched(lambda x, y: -x)
    outside = Searched(label="adamw", best={"lr": 1e-5, "weight_decay": 0.05}, trials=found.trials)
    assert edges(definition(), [outside]) == []


@pytest.mark.parametrize(
    ("parameter", "end", "wider"),
    [
        ({"type": "float", "low": 0.999, "high": 0.9999}, "low", 0.99855),
        ({"type": "float", "low": 999.9, "high": 1001.0}, "high", 1001.5),
        ({"type": "float", "low": 1.0, "high": 1.001, "log": True}, "low", 0.9995),
    ],
)
def test_a_narrow_range_becomes_wider(parameter: dict[str, Any], end: End, wider: float) -> None:
    assert _beyond(FloatParameter.model_validate(parameter), end, 0.5) == pytest.approx(wider, abs=1e-9)


def test_a_grid_is_widened_as_far_as_all_its_points_can_be_searched() -> None:
    """89,100 points; each of three parameters may be wider, and all three would make 117,480 of at most 100,000."""
    space = {
        "lr": {"type": "float", "low": 0.01, "high": 1.0, "step": 0.01},
        "momentum": {"type": "float", "low": 0.1, "high": 0.5, "step": 0.005},
        "weight_decay": {"type": "float", "low": 0.0, "high": 0.1, "step": 0.01},
    }
    raw = {"name": "g", "task": "digits", "optimizers": [{"name": "sgdm", "space": space}], "sampler": "grid"}
    study = StudyDefinition.model_validate(raw)
    ends = {name: (one["low"], one["high"]) for name, one in space.items()}
    trials = [
        ({name: low + (high - low) * i / 59 for name, (low, high) in ends.items()}, float(i))  # type: ignore[operator]
        for i in range(60)
    ]
    found = edges(study, [Searched(label="sgdm", best=trials[-1][0], trials=trials)])
    assert [edge.parameter for edge in found] == ["lr"]
    assert widened(study, found).optimizers[0].space["lr"].high == pytest.approx(1.1)  # type: ignore[union-attr]
