"""Text for people: other people's text without secrets and control characters, and tables as Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

_SECRETS = (
    (re.compile(r"\badm_[A-Za-z0-9_-]{8,}"), "adm_***"),
    # The password of an address ends at the last @ before a space, because a password may contain @, / and ?.
    (re.compile(r"(://[^\s:/@]*:)\S+(@)"), r"\1***\2"),
    (re.compile(r"(?i)([?&;][^\s=&;]*(?:password|passwd|passphrase|secret|token)=)[^\s&;'\"]+"), r"\1***"),
    (re.compile(r"(?i)(\bauthorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic)\s+)[^\s'\",]+"), r"\1***"),
    (re.compile(r"(?i)(\bpassword['\"]?\s*[:=]\s*['\"]?)[^\s'\",;&]+"), r"\1***"),
)
_SECRET_NAME = re.compile(r"(?i)TOKEN|KEY|PASSWORD|PASSWD|SECRET")
_PLACE_NAME = re.compile(r"(?i)_(FILE|PATH|DIR|URL|MODE)$")

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text without colours, with every other character that controls a terminal written as its escape."""
    text = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def without_secrets(text: str, *, known: Collection[str] = ()) -> str:
    """The text with tokens, the passwords of addresses, and the secrets that are known, replaced by ***."""
    for secret in sorted(known, key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, "***")
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def secrets_in(environ: Mapping[str, str]) -> set[str]:
    """The values of variables whose names say that they are secret; those of fewer than 8 characters may be words."""
    named = (value for name, value in environ.items() if _SECRET_NAME.search(name) and not _PLACE_NAME.search(name))
    return {value for value in named if len(value) >= 8}


_ESCAPES = str.maketrans({
    **{mark: "\\" + mark for mark in "&%_#${}"},
    "\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}", "<": r"$<$", ">": r"$>$",
    "±": r"$\pm$", "Δ": r"$\Delta$", "λ": r"$\lambda$", "β": r"$\beta$", "δ": r"$\delta$", "∞": r"$\infty$",
    "–": "--", "−": r"$-$", "≥": r"$\geq$", "≤": r"$\leq$", "·": r"$\cdot$", "×": r"$\times$",
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


def latex_list(items: Sequence[str]) -> str:
    """The texts as a LaTeX list, escaped; empty where there are none."""
    lines = [rf"\item {escape(item)}" for item in items]
    return "\n".join(["", r"\begin{itemize}", *lines, r"\end{itemize}"]) + "\n" if lines else ""


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
