"""Markdown and LaTeX of a table: what is special in either is escaped."""

from __future__ import annotations

from admeta.client.text import latex, markdown


def test_markdown() -> None:
    assert markdown(["", "a|b"], [["x", "1 ± 2"]]) == "|  | a\\|b |\n| --- | --- |\n| x | 1 ± 2 |\n"


def test_latex() -> None:
    text = latex(
        ["optimizer", "val_loss"],
        [["a_b & {c}$ 5%", "1 ± 2"], ["x\\y\n^~#", "–"]],
        bold={(0, 1)},
        comment="one\ntwo",
    )
    assert text.splitlines() == [
        "% one two",
        r"\begin{tabular}{lc}",
        r"\toprule",
        r"optimizer & val\_loss \\",
        r"\midrule",
        r"a\_b \& \{c\}\$ 5\% & \textbf{1 $\pm$ 2} \\",
        r"x\textbackslash{}y \^{}\~{}\# & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
