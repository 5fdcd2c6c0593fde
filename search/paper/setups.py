"""How the paper trained and searched: set-ups, grids, best settings, and which of our models count as its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from pydantic import Field, JsonValue

from search.paper.tables import EMPTY, Part, Table, read, read_tables


class PaperModel(Part):
    """A model of the paper, and the names of our models that count as it."""

    title: str
    ours: list[str]


class OptimizerSetup(Part):
    """How the paper searched one optimizer: the printed grid (None: not printed) and the constant parameters."""

    grid: Mapping[str, list[float]] | None = None
    fixed: Mapping[str, JsonValue] = Field(default_factory=dict)


class Setup(Part):
    """How a group of the paper's cells was trained.

    Attributes:
        source: the section of the paper.
        tasks, models: where it applies; models by the paper's names.
        variant: None for the main results; "finetune" for the appendix's SGDM and AdmetaS.
        training: fields of our task configuration that the paper states.
        unprinted: what the authors' configuration files add.
        optimizers: by name, in the order of the text.
    """

    source: str
    tasks: list[str]
    models: list[str]
    variant: str | None = None
    training: Mapping[str, Any]
    unprinted: str | None = None
    optimizers: Mapping[str, OptimizerSetup]
    notes: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def _file() -> Mapping[str, Any]:
    content: dict[str, Any] = read("setups.yaml")
    return content


@lru_cache(maxsize=1)
def paper_models() -> Mapping[str, PaperModel]:
    """The paper's models by their name here."""
    return MappingProxyType({name: PaperModel.model_validate(raw) for name, raw in _file()["models"].items()})


def model_id(model: str) -> str | None:
    """The paper's model that a model of ours counts as; None for a model that the paper does not use."""
    for name, known in paper_models().items():
        if model == name or model in known.ours:
            return name
    return None


@lru_cache(maxsize=1)
def setups() -> Mapping[str, Setup]:
    """The paper's set-ups by name."""
    return MappingProxyType({name: Setup.model_validate(raw) for name, raw in _file()["setups"].items()})


def setup_of(*, task: str, model: str, variant: str | None = None) -> Setup | None:
    """How the paper trained this task and model (by the paper's name); None if it did not."""
    for setup in setups().values():
        if task in setup.tasks and model in setup.models and setup.variant == variant:
            return setup
    return None


@dataclass(frozen=True, kw_only=True)
class PaperSettings:
    """The paper's best settings of an optimizer on a task and model.

    Attributes:
        task, optimizer: as the product names them.
        model: the paper's name of it.
        table: our name of the table that prints them.
        params: the parameters that the paper searched: lr, and λ (lambd) or β (beta).
        fixed: the parameters that it kept constant.
    """

    task: str
    model: str
    optimizer: str
    table: str
    params: Mapping[str, float]
    fixed: Mapping[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """`params` and `fixed` together: the constructor's arguments."""
        return {**self.fixed, **self.params}


@lru_cache(maxsize=1)
def settings_tables() -> Mapping[str, Table]:
    """The appendix's tables of settings in the paper's own layout, by our name of each, in the paper's order."""
    return read_tables("settings.yaml")


@lru_cache(maxsize=1)
def all_settings() -> tuple[PaperSettings, ...]:
    """Every task, model and optimizer whose settings the paper prints."""
    found: dict[tuple[str, str, str, str], dict[str, float]] = {}
    for name, table in settings_tables().items():
        for row in table.rows:
            for column, token in zip(table.columns, row.tokens(), strict=True):
                facts = table.cell_facts(row, column)
                params = found.setdefault((name, facts["task"], facts["model"], facts["optimizer"]), {})
                if token != EMPTY:
                    params[facts["parameter"]] = float(token)
    return tuple(
        PaperSettings(
            task=task,
            model=model,
            optimizer=optimizer,
            table=table,
            params=params,
            fixed=_fixed(task, model, optimizer),
        )
        for (table, task, model, optimizer), params in found.items()
    )


def best_settings(*, task: str, model: str, optimizer: str) -> PaperSettings | None:
    """The paper's best settings, or None if it has none.

    Args:
        task, optimizer: as the product names them.
        model: the paper's name, or one of ours that counts as it: resnet110, bert-base-uncased, …
    """
    known = model_id(model)
    for settings in all_settings():
        if (settings.task, settings.model, settings.optimizer) == (task, known, optimizer):
            return settings
    return None


def _fixed(task: str, model: str, optimizer: str) -> Mapping[str, Any]:
    setup = setup_of(task=task, model=model)
    if setup is None or optimizer not in setup.optimizers:
        raise ValueError(
            f"settings.yaml has {optimizer} on {task} with {model}, which is missing in setups.yaml; add it there"
        )
    return setup.optimizers[optimizer].fixed
