"""Our results next to the paper's, for REST and the pages: which of ours belongs to which cell.

`search.paper` owns what the paper prints, and which of our models counts as one of its.
"""

from __future__ import annotations

from collections.abc import Sequence

import search.paper.comparison
import search.paper.tables
from admeta.client.models import (
    OurNumberView,
    PaperCellView,
    PaperNumberView,
    PaperStudyView,
    PaperTableCellsView,
    PaperTableView,
    SpreadView,
)
from search.paper.comparison import Cell, Measured, PaperStudy, paper_studies, smoke
from service.database.queries import BestResult, longest_recipes


def measured(found: Sequence[BestResult], origin: dict[int, BestResult]) -> list[Measured]:
    """Our test results as the paper's tables take them; `origin` is filled: by `id` of each, where it comes from."""
    made = []
    for one in longest_recipes(found):
        if one.best.model is None:
            continue
        known: dict[str, SpreadView] = {**one.tested, "training_time": one.train_s}
        for metric, spread in known.items():
            if spread.mean is not None:
                made.append(_measured(one, metric, spread, spread.mean))
                origin[id(made[-1])] = one
    return made


def table_list(found: Sequence[BestResult]) -> list[PaperTableView]:
    """All the paper's result tables, without their cells."""
    return [_listed(name, n_ours=n) for name, n in search.paper.comparison.count_ours(measured(found, {})).items()]


def table_view(name: str, found: Sequence[BestResult]) -> PaperTableCellsView:
    """One of the paper's tables with our test results in it.

    Raises:
        SearchError: there is no such table.
    """
    origin: dict[int, BestResult] = {}
    table = search.paper.comparison.compare_table(name, measured(found, origin))
    return PaperTableCellsView(
        **_listed(name, n_ours=table.n_ours).model_dump(),
        columns=[list(column) for column in table.columns],
        rows=[list(row) for row in table.rows],
        cells=[[_cell(cell, origin) for cell in row] for row in table.cells],
        notes=list(table.notes),
    )


def _listed(name: str, *, n_ours: int) -> PaperTableView:
    table = search.paper.tables.result_tables()[name]
    return PaperTableView(
        name=name,
        number=table.number,
        caption=table.caption,
        n_cells=len(search.paper.tables.results(table=name)),
        n_ours=n_ours,
        studies=[study.name for study in paper_studies().values() if study.table == name],
    )


def study_view(study: PaperStudy) -> PaperStudyView:
    """One of the paper's studies, without its definition."""
    definition = study.definition
    origin = definition.task.init_from
    first = None if origin is None or isinstance(origin, str) else origin.study
    return PaperStudyView(
        name=study.name,
        study=definition.name,
        table=study.table,
        task=definition.task.name,
        model=definition.task.model,
        optimizers=[one.label for one in definition.optimizers],
        n_runs=definition.n_runs,
        after=next((name for name, other in paper_studies().items() if other.definition.name == first), None),
        notes=study.notes,
    )


def full_study(study: PaperStudy) -> PaperStudyView:
    """The study with its definition."""
    return study_view(study).model_copy(update={"definition": study.definition.to_json()})


def small_study(study: PaperStudy) -> PaperStudyView:
    """The study with the definition, name and size of its small form (search.paper.comparison)."""
    small = smoke(study.definition)
    changes = {"study": small.name, "model": small.task.model, "n_runs": small.n_runs, "definition": small.to_json()}
    return study_view(study).model_copy(update=changes)


def _cell(cell: Cell, origin: dict[int, BestResult]) -> PaperCellView:
    paper, ours = cell.paper, cell.ours
    return PaperCellView(
        paper=None if paper is None else PaperNumberView.model_validate(paper),
        ours=None if ours is None else _our_number(cell, ours, origin[id(ours)]),
        difference=None if paper is None or ours is None else ours.mean - paper.value,
    )


def _our_number(cell: Cell, ours: Measured, result: BestResult) -> OurNumberView:
    return OurNumberView(**{**dict(result.best), **vars(ours)}, text=search.paper.comparison.cell_texts(cell)[1])


def _measured(one: BestResult, metric: str, spread: SpreadView, mean: float) -> Measured:
    return Measured(
        task=one.best.task,
        model=one.best.model or "",
        optimizer=one.best.optimizer,
        metric=metric,
        mean=mean,
        std=spread.std,
        n=spread.n,
        variant=one.variant,
    )
