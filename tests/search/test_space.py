"""Search spaces: what they refuse, and that every draw lies in them, whatever the space."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

import admeta.registry
from search.named_spaces import named_spaces
from search.space import (
    CategoricalParameter,
    FloatParameter,
    IntParameter,
    Space,
    check_conditions,
    draw,
    encode_choice,
    from_registry,
    ordered,
    why_not,
)

SPACE = TypeAdapter(Space)

finite = st.floats(-1e6, 1e6, allow_nan=False)
positive = st.floats(1e-9, 1e6, exclude_min=True)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), finite, st.text(max_size=8))


@st.composite
def float_parameters(draw_from: st.DrawFn) -> dict[str, Any]:
    kind = draw_from(st.sampled_from(["plain", "log", "step"]))
    if kind == "step":  # as people write them: a few decimals
        thousandths = st.integers(-(10**6), 10**6)
        low, high = sorted(draw_from(st.lists(thousandths, min_size=2, max_size=2, unique=True)))
        step = draw_from(st.integers(1, high - low))
        return {"type": "float", "low": low / 1000, "high": high / 1000, "step": step / 1000}
    bounds = st.lists(positive if kind == "log" else finite, min_size=2, max_size=2, unique=True).map(sorted)
    low, high = draw_from(bounds)
    return {"type": "float", "low": low, "high": high, "log": kind == "log"}


@st.composite
def int_parameters(draw_from: st.DrawFn) -> dict[str, Any]:
    log = draw_from(st.booleans())
    low = draw_from(st.integers(1 if log else -(10**6), 10**6))
    width = draw_from(st.integers(1, 10**6))
    step = 1 if log else draw_from(st.integers(1, width))
    return {"type": "int", "low": low, "high": low + width, "log": log, "step": step}


categorical_parameters = st.lists(
    st.one_of(scalars, st.lists(scalars, max_size=3)), min_size=1, max_size=6, unique_by=json.dumps
).map(lambda choices: {"type": "categorical", "choices": choices})


def parse(parameter: dict[str, Any]) -> Any:
    return SPACE.validate_python({"p": parameter})["p"]


def draw_many(space: Space, *, n_trials: int = 5, seed: int = 0) -> list[dict[str, Any]]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [draw(study.ask(), space) for _ in range(n_trials)]


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@settings(max_examples=60)
@given(st.one_of(float_parameters(), int_parameters()), st.integers(0, 2**32 - 1))
def test_numbers_are_drawn_within_their_bounds(raw: dict[str, Any], seed: int) -> None:
    parameter = parse(raw)
    for params in draw_many({"p": parameter}, seed=seed):
        assert parameter.low <= params["p"] <= parameter.high
        assert isinstance(params["p"], int if raw["type"] == "int" else float)
        if raw.get("step"):
            steps = (params["p"] - parameter.low) / raw["step"]
            assert math.isclose(steps, round(steps), abs_tol=1e-6)


@settings(max_examples=60)
@given(categorical_parameters)
def test_choices_come_back_as_they_were_written(raw: dict[str, Any]) -> None:
    try:
        parameter = parse(raw)
    except ValidationError:
        return  # equal choices such as 1 and true, which have a test of their own
    for params in draw_many({"p": parameter}):
        assert json.dumps(params["p"]) in [json.dumps(choice) for choice in raw["choices"]]


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from("abcd"), st.one_of(float_parameters(), int_parameters()), min_size=1))
def test_a_space_survives_json(raw: dict[str, Any]) -> None:
    space = SPACE.validate_python(raw)
    assert SPACE.validate_json(SPACE.dump_json(space)) == space


@settings(max_examples=60)
@given(st.one_of(float_parameters(), int_parameters()))
def test_a_grid_is_as_long_as_it_says_and_within_the_bounds(raw: dict[str, Any]) -> None:
    parameter = parse(raw)
    if raw["type"] == "float" and "step" not in raw:
        with pytest.raises(ValueError, match="needs a step"):
            parameter.grid_size()
        return
    if parameter.grid_size() > 10_000:
        return
    values = parameter.grid_values()
    assert len(values) == len(set(values)) == parameter.grid_size()
    assert parameter.low == values[0]
    assert values[-1] <= parameter.high
    distribution = parameter.distribution()
    assert all(distribution._contains(distribution.to_internal_repr(value)) for value in values)


@settings(max_examples=40)
@given(st.data())
def test_parents_come_before_the_parameters_that_depend_on_them(data: st.DataObject) -> None:
    names = data.draw(st.permutations("abcdef"))
    switch = {"type": "categorical", "choices": [0, 1]}
    raw: dict[str, Any] = {}
    for i, name in enumerate(names):
        parents = data.draw(st.lists(st.sampled_from(names[:i]), unique=True, max_size=2)) if i else []
        raw[name] = {**switch, **({"when": dict.fromkeys(parents, 1)} if parents else {})}
    space = SPACE.validate_python({name: raw[name] for name in data.draw(st.permutations(names))})
    check_conditions(space)
    order = ordered(space)
    assert sorted(order) == sorted(names)
    for name in names:
        assert all(order.index(parent) < order.index(name) for parent in raw[name].get("when", ()))
    for params in draw_many(space):
        for name in names:
            holds = all(params.get(parent) == 1 for parent in raw[name].get("when", ()))
            assert (name in params) == holds


FLOAT = {"type": "float", "low": 0.1, "high": 0.2}
INT = {"type": "int", "low": 1, "high": 9}


@pytest.mark.parametrize(
    ("parameter", "rule"),
    [
        ({**FLOAT, "low": 0.2}, "low = 0.2 must be less than high = 0.2"),
        ({**FLOAT, "low": 0.3}, "low = 0.3 must be less than high = 0.2"),
        ({**FLOAT, "low": 0, "log": True}, "greater than 0 on a log scale"),
        ({**FLOAT, "low": -1, "log": True}, "greater than 0 on a log scale"),
        ({**FLOAT, "low": math.nan}, "finite number"),
        ({**FLOAT, "high": math.inf}, "finite number"),
        ({**FLOAT, "low": -1.7e308, "high": 1.7e308}, "not a finite number"),
        ({**FLOAT, "low": "0.1"}, "valid number"),
        ({**FLOAT, "high": True}, "valid number"),
        ({**FLOAT, "log": "yes"}, "valid boolean"),
        ({**FLOAT, "step": 0.05, "log": True}, "log and step"),
        ({**FLOAT, "step": 0.5}, "step = 0.5 must be at most"),
        ({**FLOAT, "step": 0}, "greater than 0"),
        ({**FLOAT, "step": 1e-300}, "more than 1,000,000,000 steps"),
        ({**FLOAT, "when": {}}, "at least 1"),
        ({**INT, "low": 1.5}, "valid integer"),
        ({**INT, "low": 9}, "must be less than"),
        ({**INT, "low": 0, "log": True}, "greater than 0 on a log scale"),
        ({**INT, "high": 10**30}, "less than or equal to 9007199254740992"),
        ({**INT, "step": 10}, "step = 10 must be at most"),
        ({**INT, "step": 2, "log": True}, "log and step"),
        ({"type": "categorical", "choices": []}, "at least 1"),
        ({"type": "categorical", "choices": [1, 1.0]}, "1 and 1.0 are equal"),
        ({"type": "categorical", "choices": [1, True]}, "1 and True are equal"),
        ({"type": "categorical", "choices": [[1, 2], [1.0, 2.0]]}, "are equal"),
        ({"type": "categorical", "choices": [[0.9, 0.99], "[0.9, 0.99]"]}, "stored as the same text"),
        ({"type": "categorical", "choices": [0.1, math.nan]}, "finite number"),
        ({"type": "categorical", "choices": [[0.9, math.inf]]}, "finite number"),
        ({"type": "categorical", "choices": [{"a": math.nan}]}, "finite number"),
        ({"type": "flaot"}, "flaot"),
        ({"low": 1, "high": 2}, "type"),
        ({**FLOAT, "lo": 1}, "not permitted"),
    ],
)
def test_what_a_parameter_refuses(parameter: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SPACE.validate_python({"p": parameter})
    assert rule in str(caught.value)
    assert all(error["loc"][0] == "p" for error in caught.value.errors())


SWITCH = {"type": "categorical", "choices": ["full", "off"]}


@pytest.mark.parametrize(
    ("space", "rule"),
    [
        ({"a": {**FLOAT, "when": {"b": 1}}}, "depends on 'b', which is not in the space"),
        ({"a": {**SWITCH, "when": {"a": "full"}}}, "circular"),
        ({"a": {**SWITCH, "when": {"b": "full"}}, "b": {**SWITCH, "when": {"a": "full"}}}, "circular"),
        ({"a": {**FLOAT, "when": {"b": "ful"}}, "b": SWITCH}, "not one of ['full', 'off']"),
        ({"a": {**FLOAT, "when": {"b": 10}}, "b": INT}, "not among the integers from 1 to 9"),
        ({"a": {**FLOAT, "when": {"b": 0.15}}, "b": FLOAT}, "Make 'b' categorical"),
    ],
)
def test_conditions_that_can_never_hold(space: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match="parameter") as caught:
        check_conditions(SPACE.validate_python(space))
    assert rule in str(caught.value)


def test_a_draw_that_was_interrupted_keeps_what_it_has() -> None:
    space = SPACE.validate_python({"a": FLOAT, "b": FLOAT})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    trial = study.ask()
    first = trial.suggest_float("a", 0.1, 0.2)
    again = optuna.Trial(study, trial._trial_id)
    assert draw(again, space)["a"] == first


def test_steps_are_counted_in_decimals() -> None:
    assert parse({"type": "float", "low": 0.1, "high": 0.3, "step": 0.2}).grid_values() == [0.1, 0.3]
    assert parse({"type": "float", "low": 0.0, "high": 0.35, "step": 0.1}).grid_values() == [0.0, 0.1, 0.2, 0.3]


@pytest.mark.filterwarnings("error")
def test_a_step_that_does_not_reach_the_end_draws_without_warnings() -> None:
    parameter = parse({"type": "float", "low": 0.0, "high": 0.35, "step": 0.1})
    assert {params["p"] for params in draw_many({"p": parameter}, n_trials=50)} == {0.0, 0.1, 0.2, 0.3}


def test_scalars_are_stored_as_they_are_and_lists_as_text() -> None:
    assert [encode_choice(c) for c in (None, True, 3, 0.1, "x")] == [None, True, 3, 0.1, "x"]
    assert encode_choice([0.9, 0.999]) == "[0.9, 0.999]"


@pytest.mark.parametrize("optimizer", admeta.registry.OPTIMIZERS)
def test_every_named_space_translates(optimizer: str) -> None:
    info = admeta.registry.get(optimizer)
    for named in named_spaces(info).values():
        space = from_registry(named.space)
        assert set(space) == set(named.space)
        for params in draw_many(space):
            for name, value in params.items():
                info.check(name, value)


def test_the_paper_prints_these_grids() -> None:
    """Chen et al., ICML 2023, appendix 'Hyperparameter Tuning'."""
    choices = {
        optimizer: {
            name: parameter.choices
            for name, parameter in from_registry(named_spaces(admeta.registry.get(optimizer))["paper"].space).items()
            if isinstance(parameter, CategoricalParameter)
        }
        for optimizer in ("admetar", "admetas", "sgdm", "radam")
    }
    assert choices == {
        "admetar": {"lr": [0.1, 0.05, 0.01], "lambd": [0.05, 0.1, 0.2, 0.3, 0.4]},
        "admetas": {"lr": [0.01, 0.05, 0.1], "beta": [0.1, 0.2, 0.3, 0.4]},
        "sgdm": {"lr": [0.01, 0.05, 0.1]},
        "radam": {"lr": [0.1, 0.01, 0.001]},
    }


def test_the_registry_s_kinds_all_translate() -> None:
    from admeta.spaces import Categorical, Float, Int

    space = from_registry(
        {"a": Float(0.1, 1.0, log=True), "b": Int(1, 9, step=2), "c": Categorical(((0.9, 0.99), (0.9, 0.999)))}
    )
    assert space == {
        "a": FloatParameter(type="float", low=0.1, high=1.0, log=True),
        "b": IntParameter(type="int", low=1, high=9, step=2),
        "c": CategoricalParameter(type="categorical", choices=[[0.9, 0.99], [0.9, 0.999]]),
    }


@pytest.mark.parametrize(
    "parameter",
    [
        FloatParameter(type="float", low=1e-5, high=1.0, log=True),
        FloatParameter(type="float", low=-2.0, high=3.0),
        FloatParameter(type="float", low=0.1, high=0.95, step=0.1),
        IntParameter(type="int", low=1, high=4096, log=True),
        IntParameter(type="int", low=3, high=31, step=7),
    ],
)
def test_the_value_at_a_position_is_the_one_that_has_it(parameter: FloatParameter | IntParameter) -> None:
    for seed in range(50):
        value = parameter.draw(random.Random(seed))
        assert parameter.value_at(parameter.position(value)) == pytest.approx(value, rel=1e-9)
    for position in (-0.5, 0.0, 0.3, 1.0, 1.5):
        assert why_not(parameter, parameter.value_at(position)) is None
