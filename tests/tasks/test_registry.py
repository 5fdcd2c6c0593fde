"""The registry and the configurations: what a definition may say, and that reading it needs no torch."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from pydantic import ValidationError

from tasks import registry
from tasks.errors import TaskError, UnknownTaskError
from tasks.registry import TASKS, all_tasks, get, load_target, parse_config
from tests.machine import PATIENCE_S


def test_reading_a_definition_imports_no_torch() -> None:
    code = "import sys, tasks.registry, tasks.runs; sys.exit('torch' in sys.modules or 'torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_S).returncode == 0


def test_idle_runs_import_no_torch() -> None:
    code = (
        "import sys; from tasks.registry import parse_config; from tasks.runs import open_run;"
        "run = open_run(parse_config({'name': 'synthetic', 'model': 'idle'}), optimizer='adamw', params={}, seed=0);"
        "run.advance(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=PATIENCE_S).returncode == 0


@pytest.mark.parametrize("name", sorted(TASKS))
def test_entry_is_whole(name: str) -> None:
    info = get(name)
    assert info.name == name == info.config.model_fields["name"].default
    assert info.default_metric in info.metrics
    assert info.test_metric == "test_" + info.default_metric.removeprefix("val_")
    assert info.title
    assert info.description
    load_target(info.run)
    if info.target is not None:
        load_target(info.target)


def test_unknown_task_names_the_nearest() -> None:
    with pytest.raises(UnknownTaskError, match=r"unknown task 'digit'; known tasks: .*Did you mean 'digits'\?"):
        parse_config({"name": "digit"})
    with pytest.raises(UnknownTaskError):
        parse_config({})


BAD_FIELDS = [
    ({"model": "convnt"}, r"unknown model 'convnt'.*Did you mean 'convnet'"),
    ({"epochs": 0}, "greater than or equal to 1"),
    ({"epochs": True}, "valid integer"),
    ({"epochs": "3"}, "valid integer"),
    ({"epochs": 1.5}, "valid integer"),
    ({"batch_size": 0}, "greater than or equal to 1"),
    ({"grad_clip": 0.0}, "greater than 0"),
    ({"grad_clip": float("nan")}, "finite"),
    ({"grad_clip": float("inf")}, "finite"),
    ({"label_smoothing": 1.0}, "less than 1"),
    ({"precision": "fp8"}, "bf16"),
    ({"lr": 0.1}, "Extra inputs"),
    ({"schedule": "cosin"}, "cosine"),
    ({"schedule": {"name": "multistep", "milestones": [0.75, 0.5]}}, "rise strictly"),
    ({"schedule": {"name": "multistep", "milestones": [0.5, 1.0]}}, "rise strictly"),
    ({"schedule": {"warmup": 1.0}}, "less than 1"),
    (
        {"schedule": {"milestones": [0.3]}},
        r"milestones = \(0.3,\) is for multistep, but the schedule's name is 'constant'",
    ),
    ({"schedule": {"name": "cosine", "gamma": 0.2}}, "gamma = 0.2 is for multistep"),
    ({"schedule": {"name": "multistep", "milestones": [0.1], "warmup": 0.2}}, r"milestone 0\.1 is in the warm-up"),
    ({"schedule": {"name": "multistep", "final": 0.1}}, "name linear or cosine, or leave final out"),
    ({"data_dir": "/etc"}, "not a path inside the data folder"),
    ({"data_dir": "../x"}, "not a path inside the data folder"),
    ({"data_dir": "a/../../x"}, "not a path inside the data folder"),
    ({"data_dir": "~root"}, "not a path inside the data folder"),
    ({"data_dir": "s3://bucket/x"}, "not a path inside the data folder"),
    ({"data_dir": "a\\..\\b"}, "not a path inside the data folder"),
    ({"data_dir": "a\x00b"}, "not a path inside the data folder"),
    ({"data_dir": ""}, "not a path inside the data folder"),
    ({"init_from": "../weights.pt"}, "not a path inside the data folder"),
    ({"init_from": {"study": "a", "optimizer": "b", "trial": -1}}, "greater than or equal to 0"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_FIELDS, ids=[str(fields) for fields, _ in BAD_FIELDS])
def test_bad_field_is_refused_with_the_rule(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parse_config({"name": "digits", **fields})


def test_an_unknown_model_is_told_at_its_field() -> None:
    with pytest.raises(ValidationError) as caught:
        parse_config({"name": "digits", "model": "convnt"})
    assert [error["loc"] for error in caught.value.errors()] == [("model",)]


def test_json_round_trip_and_shorthand() -> None:
    config = parse_config(
        {"name": "digits", "schedule": "linear", "init_from": {"study": "s", "optimizer": "o", "trial": 3}}
    )
    assert config.schedule.name == "linear"
    assert type(config).model_validate_json(config.model_dump_json()) == config
    assert type(config).model_validate(config.model_dump(mode="json")) == config


def test_schema_is_json() -> None:
    for info in all_tasks().values():
        assert info.config.model_json_schema()["properties"]["epochs"]["minimum"] == 1


def _entry_points(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = EntryPoint(name="mine", value=value, group=registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [point])
    all_tasks.cache_clear()


@pytest.fixture(autouse=True)
def _fresh_registry() -> object:
    yield
    all_tasks.cache_clear()


def test_a_package_cannot_take_a_name_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MINE", TASKS["digits"], raising=False)
    _entry_points(monkeypatch, "tasks.registry:MINE")
    with pytest.raises(TaskError, match="'digits', which exists"):
        all_tasks()


def test_a_packages_task_must_be_a_task_info(monkeypatch: pytest.MonkeyPatch) -> None:
    _entry_points(monkeypatch, "tasks.registry:ENTRY_POINT_GROUP")
    with pytest.raises(TaskError, match="is a str; point it at a TaskInfo"):
        all_tasks()
