"""A table of headed rows as Markdown and as LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

_LATEX = {"±": r"$\pm$", "Δ": r"$\Delta$", "–": "--", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#"}


def markdown(columns: Sequence[Sequence[str]], rows: Sequence[Sequence[str]], cells: Sequence[Sequence[str]]) -> str:
    """The table as Markdown.

    Args:
        columns, rows: the heading of each, one string a level.
        cells: a text for each row and column.
    """
    heads = ["", *map(head_text, columns)]
    lines = [_markdown_row(heads), _markdown_row(["---"] * len(heads))]
    lines += [_markdown_row([head_text(head), *texts]) for head, texts in zip(rows, cells, strict=True)]
    return "\n".join(lines) + "\n"


def latex(columns: Sequence[Sequence[str]], rows: Sequence[Sequence[str]], cells: Sequence[Sequence[str]]) -> str:
    """The table as a LaTeX tabular (needs booktabs); the arguments are those of `markdown`."""
    heads = ["", *map(head_text, columns)]
    lines = [rf"\begin{{tabular}}{{l{'c' * len(columns)}}}", r"\toprule", _latex_row(heads), r"\midrule"]
    lines += [_latex_row([head_text(head), *texts]) for head, texts in zip(rows, cells, strict=True)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def head_text(head: Sequence[str]) -> str:
    """A heading of several levels in one line."""
    return " ".join(part for part in head if part)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _latex_row(cells: Sequence[str]) -> str:
    escaped = ("".join(_LATEX.get(character, character) for character in cell) for cell in cells)
    return " & ".join(escaped) + r" \\"
