"""The settings that the paper's numbers were reached with, as a study takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from search.paper.setups import model_id, setup_of
from search.paper.tables import EMPTY, Table, read_tables


@dataclass(frozen=True, kw_only=True)
class PaperSettings:
    """The paper's best settings of an optimizer on a task and model.

    Attributes:
        task, optimizer: as the product names them.
        model: the paper's name of it.
        table: our name of the table that prints them.
        params: what the paper searched: lr, and λ (lambd) or β (beta).
        fixed: what it held fixed (search.paper.setups).
    """

    task: str
    model: str
    optimizer: str
    table: str
    params: Mapping[str, float]
    fixed: Mapping[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """params and fixed together: what constructs the optimizer."""
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
    """The paper's best settings, or None where it prints none.

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
            f"settings.yaml has {optimizer} on {task} with {model}, which setups.yaml has not; add it there"
        )
    return setup.optimizers[optimizer].fixed
