"""The paper's tables and studies as text tables, for the command line."""

from __future__ import annotations

from collections.abc import Iterable

from service.models import PaperCellView, PaperStudyView, PaperTableCellsView, PaperTableView
from service.sheets import Sheet

NOTHING = "–"


def table_list(tables: Iterable[PaperTableView]) -> Sheet:
    """A line a table."""
    sheet = Sheet("table", "no.", "numbers", "ours", "caption", "studies", wrapped=["caption", "studies"])
    for table in tables:
        sheet.add_row(
            table.name,
            str(table.number),
            str(table.n_cells),
            str(table.n_ours),
            table.caption,
            ", ".join(table.studies),
        )
    return sheet


def cells(table: PaperTableCellsView) -> Sheet:
    """The table in the paper's rows and columns; a cell is the paper's number / ours."""
    heads = [" ".join(part for part in column if part) for column in table.columns]
    sheet = Sheet("paper / ours", *heads, wrapped=heads)
    for row, said in zip(table.rows, texts(table), strict=True):
        sheet.add_row(" ".join(row), *said)
    return sheet


def texts(table: PaperTableCellsView) -> list[list[str]]:
    """Each cell as `paper / ours`."""
    return [[_cell(cell) for cell in row] for row in table.cells]


def study_list(studies: Iterable[PaperStudyView]) -> Sheet:
    """A line a study."""
    sheet = Sheet("study", "table", "task", "model", "runs", "optimizers")
    for study in studies:
        optimizers = ", ".join(study.optimizers)
        sheet.add_row(study.name, study.table, study.task, study.model, str(study.n_runs), optimizers)
    return sheet


def study(view: PaperStudyView) -> Sheet:
    """What one study is, a line a fact."""
    sheet = Sheet("", view.name)
    facts = {
        "submitted as": view.study,
        "table": view.table,
        "task": f"{view.task}, {view.model}",
        "optimizers": ", ".join(view.optimizers),
        "runs": str(view.n_runs),
        "after": view.after or "",
        "notes": view.notes,
    }
    for name, text in facts.items():
        if text:
            sheet.add_row(name, text)
    return sheet


def _cell(cell: PaperCellView) -> str:
    paper = NOTHING if cell.paper is None else cell.paper.text
    return f"{paper} / {NOTHING if cell.ours is None else cell.ours.text}"
