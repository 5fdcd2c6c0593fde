"""Our numbers find their cells in the paper's tables."""

from __future__ import annotations

import pytest

from admeta.client.models import OurNumberView
from admeta.client.terminal.tables.catalog import paper_rows
from admeta.client.text import latex, markdown
from search.errors import SearchError
from search.paper.comparison import Measured, compare_table, list_tables, number_text
from search.paper.tables import result_tables, results


def _ours(
    optimizer: str, mean: float, *, std: float | None = None, n: int = 1, model: str = "resnet110",
    task: str = "cifar10", variant: str | None = None,
) -> Measured:  # fmt: skip
    text = number_text("accuracy", mean=mean, std=std, n=n)
    trial = {"study": "ours", "label": optimizer, "trial": 0}
    number = OurNumberView(text=text, mean=mean, std=std, n=n, model=model, **trial)
    return Measured(task=task, optimizer=optimizer, metric="accuracy", number=number, variant=variant)


OURS = [
    _ours("admetas", 0.9401, std=0.002, n=3, model="resnet110_preact"),
    _ours("admetas", 0.1),
    _ours("sgd", 0.9, model="resnet20"),
    _ours("sgd", 0.75, task="cifar100", model="pyramidnet110_a48"),
]


def test_numbers_find_their_cells() -> None:
    table = compare_table("cifar", OURS)
    assert table.columns[1] == ["CIFAR-10", "PyramidNet"]
    assert (table.number, len(table.rows), table.n_ours) == (1, 8, 2)
    cell = table.cells[7][0]
    assert cell.paper is not None
    assert cell.paper.text == "94.12±0.17"
    assert cell.ours is OURS[0].number  # the first that fits, not the second; and resnet20 fits nowhere
    assert table.cells[5][3].ours is OURS[3].number


def test_what_is_counted_is_what_stands_in_the_tables() -> None:
    listed = list_tables(OURS)
    assert [one.name for one in listed] == list(result_tables())
    for one in listed:
        cells = [cell for row in compare_table(one.name, OURS).cells for cell in row]
        assert one.n_ours == sum(cell.ours is not None for cell in cells)
        assert one.n_cells == sum(cell.paper is not None for cell in cells) == len(results(table=one.name))
    assert listed[0].n_ours == 2


def test_variants_fill_the_ablation_table() -> None:
    ours = [_ours("admetas", 0.93, variant="-LF"), _ours("admetas", 0.94)]
    table = compare_table("ablation", ours)
    filled = {table.rows[i][0]: cell.ours for i, row in enumerate(table.cells) for cell in row if cell.ours}
    assert filled == {"AdmetaS": ours[1].number, "-LF": ours[0].number}
    assert table.cells[0][1].paper is None  # Adam has no Δ


def test_superb_of_table_11_is_filled_by_sgdm_and_admetas() -> None:
    ours = [_ours("sgdm", 0.97, task="superb_ks", model="facebook/wav2vec2-base")]
    assert compare_table("finetune", ours).cells[0][0].ours is ours[0].number


def test_markdown() -> None:
    lines = markdown(*paper_rows(compare_table("cifar", OURS))).splitlines()
    assert lines[0].startswith("|  | CIFAR-10 ResNet-110 | CIFAR-10 PyramidNet |")
    assert lines[1] == "| --- | --- | --- | --- | --- |"
    assert lines[-1].startswith("| AdmetaS | 94.12±0.17 / 94.01±0.20 (n=3) | 95.30±0.08 / – |")
    assert "76.51±0.06 / 75.00 (n=1)" in lines[7]


def test_latex() -> None:
    lines = latex(*paper_rows(compare_table("cifar", OURS))).splitlines()
    assert lines[0] == r"\begin{tabular}{lcccc}"
    assert lines[-3].startswith(r"AdmetaS & 94.12$\pm$0.17 / 94.01$\pm$0.20 (n=3) & 95.30$\pm$0.08 / --")
    assert lines[-3].endswith(r"\\")
    assert r"$\Delta$" in latex(*paper_rows(compare_table("ablation", [])))


def test_no_such_table() -> None:
    with pytest.raises(SearchError, match="no result table 'cifa'; did you mean 'cifar'"):
        compare_table("cifa", [])
