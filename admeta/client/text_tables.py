"""Tables of text as Markdown and as LaTeX: the one writer of each. Imports nothing of the project."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

_ESCAPES = str.maketrans({
    **{mark: "\\" + mark for mark in "&%_#${}"},
    "\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "<": r"$<$", ">": r"$>$",
    "±": r"$\pm$", "Δ": r"$\Delta$", "λ": r"$\lambda$", "β": r"$\beta$", "δ": r"$\delta$", "∞": r"$\infty$",
    "–": "--", "−": r"$-$", "≥": r"$\geq$", "≤": r"$\leq$", "·": r"$\cdot$",
})  # fmt: skip


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as Markdown: a heading for each column, and a text for each cell of each row."""
    lines = [_markdown_row(head), _markdown_row(["---"] * len(head)), *map(_markdown_row, rows)]
    return "\n".join(lines) + "\n"


def latex(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    bold: Collection[tuple[int, int]] = (),
    comment: str | None = None,
) -> str:
    r"""The table as a LaTeX tabular that needs booktabs: the first column is left-aligned, the others centred.

    Args:
        head, rows: plain text, as for `markdown`; characters that are special in LaTeX are escaped.
        bold: cells to set in \textbf, as (row, column) from 0.
        comment: a line above the table, for readers of the source.
    """
    lines = [] if comment is None else ["% " + " ".join(comment.split())]
    lines += [
        rf"\begin{{tabular}}{{l{'c' * (len(head) - 1)}}}",
        r"\toprule",
        _latex_row(map(escape, head)),
        r"\midrule",
    ]
    for i, row in enumerate(rows):
        cells = [rf"\textbf{{{escape(cell)}}}" if (i, j) in bold else escape(cell) for j, cell in enumerate(row)]
        lines.append(_latex_row(cells))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escape(text: str) -> str:
    """The text for LaTeX's text mode; line breaks become spaces."""
    return " ".join(text.split()).translate(_ESCAPES)


def head_text(head: Sequence[str]) -> str:
    """A heading of several levels in one line."""
    return " ".join(part for part in head if part)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"
