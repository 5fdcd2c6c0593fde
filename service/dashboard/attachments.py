"""Data to take away: CSV and other texts with a file name."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import Response

_MEDIA_TYPES = {"csv": "text/csv", "tex": "text/x-latex", "md": "text/markdown", "yaml": "application/yaml"}


def as_csv(table: Iterable[Sequence[Any]], *, name: str) -> Response:
    """A table, its first row the header, as `name`.csv."""
    text = io.StringIO()
    csv.writer(text).writerows(table)
    return as_text(text.getvalue(), name=f"{name}.csv")


def as_text(text: str, *, name: str) -> Response:
    """A text as a file of this name, whose ending tells the media type."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
    return Response(text, media_type=f"{media_type}; charset=utf-8", headers=headers)
