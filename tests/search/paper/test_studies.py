"""The study files of studies/paper: they validate, and search what the paper searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import admeta.registry
from search.definition import StudyDefinition
from search.optimizer_search import OptimizerSearch
from search.paper import setups, tables
from search.paper.comparison import paper_studies
from search.space import CategoricalParameter

FOLDER = Path(__file__).resolve().parents[3] / "studies" / "paper"
FILES = sorted(FOLDER.glob("*.yaml"))
TABLE_1 = ("cifar10-resnet110", "cifar10-pyramidnet110", "cifar100-resnet110", "cifar100-pyramidnet110")
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
FINE_TUNED = [
    *((task, model) for task in (*GLUE, "squad_v1", "squad_v2", "conll2003") for model in ("bert-base", "bert-large")),
    *((task, "wav2vec2-base") for task in ("superb_ks", "common_language")),
]
VARIANTS = {
    "": None, "no-dema": "-DEMA", "no-lb": "-LB", "no-lf": "-LF", "no-lb-lf": "-LB-LF", "constant-lf": "constant LF",
}  # fmt: skip


def _study(name: str) -> StudyDefinition:
    return StudyDefinition.model_validate(yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def _only_point(search: OptimizerSearch) -> dict[str, Any]:
    """The one configuration of a search whose space has a single point."""
    point = {}
    for name, parameter in search.space.items():
        assert isinstance(parameter, CategoricalParameter)
        (point[name],) = parameter.choices
    return {**search.fixed, **point}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_study_validates_and_is_named_after_its_file(file: Path) -> None:
    study = _study(file.stem)
    assert study.name == f"paper-{file.stem}"
    assert StudyDefinition.model_validate(study.to_json()) == study


@pytest.mark.parametrize("name", TABLE_1)
def test_table_1_searches_the_papers_grids(name: str) -> None:
    study = _study(name)
    setup = setups.setups()["cifar"]
    assert {search.name for search in study.optimizers} == set(setup.optimizers)
    for search in study.optimizers:
        grid = setup.optimizers[search.name].grid or {}
        for parameter, values in grid.items():
            found = search.space[parameter]
            assert isinstance(found, CategoricalParameter)
            extra = {0.5} if name == "cifar100-pyramidnet110" and search.name in ("sgd", "sgdm") else set()
            assert set(found.choices) == set(values) | extra
        assert search.space.keys() == grid.keys()
    assert study.task.epochs == setup.training["epochs"]
    assert study.task.batch_size == setup.training["batch_size"]
    assert study.task.schedule.model_dump(include=setup.training["schedule"].keys()) == {
        **setup.training["schedule"],
        "milestones": tuple(setup.training["schedule"]["milestones"]),
    }
    assert setups.model_id(study.task.model) in setup.models


@pytest.mark.parametrize("name", TABLE_1)
def test_table_1_can_reach_the_papers_best_settings(name: str) -> None:
    study = _study(name)
    for search in study.optimizers:
        best = setups.best_settings(task=study.task.name, model=study.task.model, optimizer=search.name)
        assert best is not None
        for parameter, value in best.params.items():
            found = search.space[parameter]
            assert isinstance(found, CategoricalParameter)
            assert value in found.choices
        for parameter, value in best.fixed.items():
            assert {**defaults(search.name), **search.fixed}[parameter] == value, (search.name, parameter)


def defaults(optimizer: str) -> dict[str, Any]:
    parameters = admeta.registry.get(optimizer).parameters
    values = {name: parameter.default for name, parameter in parameters.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def test_ablation_is_the_papers_rows() -> None:
    study = _study("cifar10-ablation")
    rows = {(row.optimizer, row.variant): row for row in tables.results(table="ablation", metric="accuracy")}
    for search in study.optimizers:
        row = rows.pop((search.name, VARIANTS[search.label.removeprefix(search.name).removeprefix("-")]))
        best = setups.best_settings(task="cifar10", model="resnet110", optimizer=search.name)
        assert best is not None
        point = _only_point(search)
        for name, value in {**best.params, **row.changes}.items():
            assert point[name] == value, (search.label, name)
    assert not rows


@pytest.mark.parametrize(("task", "model"), FINE_TUNED)
def test_tables_2_to_4_have_the_papers_settings_and_budgets(task: str, model: str) -> None:
    study = _study(f"{task.replace('_', '-')}-{model}")
    setup = setups.setup_of(task=task, model=model)
    assert setup is not None
    assert setups.model_id(study.task.model) == model
    for field, value in setup.training.items():
        assert getattr(study.task, field) == value, field
    assert [search.name for search in study.optimizers] == list(setup.optimizers)
    for search in study.optimizers:
        best = setups.best_settings(task=task, model=model, optimizer=search.name)
        assert best is not None
        point = _only_point(search)
        assert {name: point.get(name) for name in best.arguments} == best.arguments
    assert study.objective.metric.removeprefix("val_") in {result.metric for result in tables.results(task=task)}


@pytest.mark.parametrize("task", ["cifar10", "cifar100"])
def test_sgd_lr_is_the_papers_rows(task: str) -> None:
    study = _study(f"{task}-sgd-lr")
    rows = tables.results(table="sgd_lr", task=task)
    assert len(study.optimizers) == len(rows)
    for search, row in zip(study.optimizers, rows, strict=True):
        best = setups.best_settings(task=task, model="resnet110", optimizer=row.optimizer)
        assert best is not None
        point = _only_point(search)
        for name, value in {**best.params, **row.changes}.items():
            assert point[name] == value, (search.label, name)


def test_every_cell_has_a_study() -> None:
    """But for GLUE's average, which is no task, and differences between cells."""
    searched = {
        (study.table, study.definition.task.name, setups.model_id(study.definition.task.model), search.name)
        for study in paper_studies().values()
        for search in study.definition.optimizers
    }
    for cell in tables.results():
        if cell.metric not in ("average", "accuracy_difference"):
            assert (cell.table, cell.task, cell.model, cell.optimizer) in searched, cell


def test_table_11_has_the_papers_budgets_on_superb() -> None:
    study = _study("superb-ks-finetune")
    setup = setups.setup_of(task="superb_ks", model="wav2vec2-base", variant="finetune")
    assert setup is not None
    for field, value in setup.training.items():
        assert getattr(study.task, field) == value, field
    assert [search.name for search in study.optimizers] == list(setup.optimizers)
    for search in study.optimizers:
        assert setup.optimizers[search.name].fixed.items() <= {**defaults(search.name), **search.fixed}.items()


def test_finetuning_starts_from_the_study_before() -> None:
    start, study = _study("cifar10-finetune-start"), _study("cifar10-finetune")
    assert study.task.init_from is not None
    assert study.task.init_from.study == start.name
    assert study.task.init_from.optimizer == start.optimizers[0].label
    setup = setups.setup_of(task="cifar10", model="resnet110", variant="finetune")
    assert setup is not None
    assert study.task.epochs == setup.training["epochs"]
    assert {search.name for search in study.optimizers} == set(setup.optimizers)
