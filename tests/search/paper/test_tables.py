"""The table format refuses files that contradict themselves."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from search.paper.tables import Column, Row, Table, _parse


def _table(**changes: object) -> Table:
    content = {
        "label": "tab:x",
        "number": 1,
        "caption": "x",
        "facts": {"unit": "percent"},
        "columns": [{"head": ["A"], "task": "a"}, {"head": ["B"], "task": "b"}],
        "rows": [{"head": ["Adam"], "optimizer": "adam", "cells": "1.0 -"}],
    }
    return Table.model_validate({**content, **changes})


def test_a_row_needs_a_cell_a_column() -> None:
    with pytest.raises(ValidationError, match=r"row \['Adam'\] has 1 cells; there are 2 columns"):
        _table(rows=[{"head": ["Adam"], "cells": "1.0"}])


def test_unknown_facts_are_refused() -> None:
    with pytest.raises(ValidationError, match="optimiser"):
        _table(rows=[{"head": ["Adam"], "optimiser": "adam", "cells": "1.0 -"}])


def test_a_cell_has_one_value_of_each_fact() -> None:
    table = _table()
    assert table.cell_facts(table.rows[0], table.columns[0]) == {"unit": "percent", "task": "a", "optimizer": "adam"}
    with pytest.raises(ValueError, match="two values of task: a, b"):
        table.cell_facts(Row(head=["r"], task="b", cells="1 2"), Column(head=["A"], task="a"))


@pytest.mark.parametrize(
    ("token", "unit", "expected"),
    [
        ("94.12±0.17", "percent", (0.9412, 0.0017)),
        ("71.00", "percent", (0.71, None)),
        ("-0.39", "percent", (-0.0039, None)),
        ("10m44s", "duration", (644, None)),
        ("8h27m33s", "duration", (30453, None)),
    ],
)
def test_parse(token: str, unit: str, expected: tuple[float, float | None]) -> None:
    assert _parse(token, unit=unit) == expected


@pytest.mark.parametrize(("token", "unit"), [("5 min", "duration"), ("", "duration"), ("5", "metres")])
def test_parse_refuses(token: str, unit: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        _parse(token, unit=unit)
