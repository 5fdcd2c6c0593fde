"""docs/paper.md names the tables and studies that there are, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from search.paper.comparison import paper_studies
from search.paper.setups import paper_models
from search.paper.tables import result_tables

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "paper.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (\d+) \| .* \| (.*) \|$", TEXT, flags=re.MULTILINE)


def test_the_tables_with_their_numbers() -> None:
    assert [(name, int(number)) for name, number, _ in ROWS] == [
        (name, table.number) for name, table in result_tables().items()
    ]


def test_the_studies_of_each_table() -> None:
    for table, _, named in ROWS:
        whole = re.findall(r"`([\w-]+)`", named)
        begun = re.findall(r"`([\w-]+)-…`", named)
        studies = [name for name, study in paper_studies().items() if study.table == table]
        assert set(whole) <= set(studies)
        assert [name for name in studies if name not in whole and not name.startswith(tuple(begun))] == []
        assert all(any(name.startswith(start) for name in studies) for start in begun)


def test_the_studies_in_commands() -> None:
    named = re.findall(r"paper (?:run|studies) ([a-z][\w-]+)", TEXT) + re.findall(r'paper_study\("([\w-]+)"\)', TEXT)
    assert named
    assert set(named) <= paper_studies().keys()


def test_the_models_that_count() -> None:
    for model in paper_models().values():
        assert all(f"`{name}`" in TEXT for name in model.ours if not name.startswith("google-bert/"))
