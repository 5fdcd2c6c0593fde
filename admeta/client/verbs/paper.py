"""The paper: its tables with ours beside, and its studies."""

from __future__ import annotations

from admeta.client.exchange import get, part, read, read_list
from admeta.client.models import PaperStudyView, PaperTableCellsView, PaperTableView
from admeta.client.wire import Flow


def paper_tables() -> Flow[list[PaperTableView]]:
    """The paper's result tables, and how many of their numbers have one of ours beside them."""
    return read_list(PaperTableView, get("/v1/paper/tables"))


def paper_table(name: str) -> Flow[PaperTableCellsView]:
    """One of the paper's tables, cell by cell: its number, ours, and the difference."""
    return read(PaperTableCellsView, get(f"/v1/paper/tables/{part(name)}"))


def paper_studies() -> Flow[list[PaperStudyView]]:
    """The studies that measure what the paper's tables report."""
    return read_list(PaperStudyView, get("/v1/paper/studies"))


def paper_study(name: str, *, form: str = "full") -> Flow[PaperStudyView]:
    """One of them with its definition: `client.submit(client.paper_study("cola-bert-base").definition)`.

    Args:
        name: as `paper_studies` gives it.
        form: full, or smoke: in small, to see that it runs.
    """
    return read(PaperStudyView, get(f"/v1/paper/studies/{part(name)}", {"form": form}))
