"""Columns of text files: CSV, TSV and JSONL, read strictly; every error names the file and the line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from tasks.data.trees import normalize_name
from tasks.errors import DataError

SUFFIXES = (".csv", ".tsv", ".jsonl")
_LONGEST_FIELD = 2**31 - 1  # csv refuses fields above 128 KiB by default
_LARGEST = 3.4e38  # float32's, in which models are trained
Quotes = Literal["csv", "none"]


@dataclass(frozen=True)
class Columns:
    """Some columns of a file.

    Attributes:
        path: the file.
        lines: the line on which each row ends, from 1.
        values: by column, one value a row: strings, or JSON values from .jsonl.
        n_skipped: rows with other than the header's number of fields that were left out.
    """

    path: Path
    lines: list[int]
    values: dict[str, list[Any]]
    n_skipped: int = 0

    def __len__(self) -> int:
        return len(self.lines)


def read_columns(
    path: Path,
    wanted: Sequence[str],
    *,
    quotes: Quotes,
    header: Sequence[str] | None = None,
    bad_rows: Literal["refuse", "skip"] = "refuse",
) -> Columns:
    """The wanted columns of a .csv, .tsv or .jsonl file; empty lines are skipped.

    Args:
        quotes: of .csv and .tsv: "csv", fields may be in double quotes and contain line breaks; "none", a quotation
            mark is text and each line a row.
        header: names of the columns where the file's first row does not give them.
        bad_rows: of .csv and .tsv: what to do with rows that have more or fewer fields than the header, which have a
            delimiter in a text, for example.

    Raises:
        DataError: no such column or two of that name, a row that does not fit, an empty or unreadable file.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path} is not read: its name must end with one of {', '.join(SUFFIXES)}")
    try:
        with path.open(encoding="utf-8-sig", newline="" if quotes == "csv" else "\n") as file:
            if path.suffix.lower() == ".jsonl":
                return _read_json(path, file, wanted)
            return _read_fields(path, file, wanted, quotes=quotes, header=header, bad_rows=bad_rows)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); convert it") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _read_fields(
    path: Path, file: TextIO, wanted: Sequence[str], *, quotes: Quotes, header: Sequence[str] | None, bad_rows: str
) -> Columns:
    delimiter = "," if path.suffix.lower() == ".csv" else "\t"
    rows = _quoted(path, file, delimiter) if quotes == "csv" else _plain(file, delimiter)
    names = [normalize_name(name) for name in (header if header is not None else next(rows, (0, []))[1])]
    if not names:
        raise DataError(f"{path} is empty; its first row must name the columns, among them {_listed(wanted)}")
    for name in wanted:
        if (n := names.count(normalize_name(name))) != 1:
            raise DataError(
                f"{path} has {n or 'no'} column{'s' if n > 1 else ''} {name!r}; its columns, divided by {delimiter!r}, "
                f"are {_listed(names)}. Each column that is read must appear once: correct the header or name another"
            )
    places = [names.index(normalize_name(name)) for name in wanted]
    columns = Columns(path, [], {name: [] for name in wanted})
    n_skipped = 0
    for line, fields in rows:
        if len(fields) != len(names):
            if bad_rows == "refuse":
                raise DataError(
                    f"{path}, line {line}: {len(fields)} fields where the header has {len(names)}; correct the row (a "
                    "field that holds the delimiter must be quoted, and quotes must be set to csv)"
                )
            n_skipped += 1
            continue
        columns.lines.append(line)
        for name, place in zip(wanted, places, strict=True):
            columns.values[name].append(fields[place])
    if n_skipped and not columns.lines:
        raise DataError(
            f"{path}: none of its {n_skipped} rows has the {len(names)} fields {_listed(names)}, divided by "
            f"{delimiter!r}; put the original file there"
        )
    return _checked(Columns(path, columns.lines, columns.values, n_skipped))


def _quoted(path: Path, file: TextIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}; correct the quotes, or set quotes: none") from error


def _plain(file: TextIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(file, start=1):
        if text := line.removesuffix("\n").removesuffix("\r"):
            yield number, text.split(delimiter)


def _read_json(path: Path, file: TextIO, wanted: Sequence[str]) -> Columns:
    columns = Columns(path, [], {name: [] for name in wanted})
    for number, line in enumerate(io.StringIO(file.read(), newline="\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON ({error}); each line must be one object") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: a JSON {type(row).__name__}; each line must be one object")
        columns.lines.append(number)
        row = {normalize_name(key): value for key, value in row.items()}
        for name in wanted:
            if normalize_name(name) not in row:
                raise DataError(f"{path}, line {number}: no {name!r}; its keys are {_listed(row)}")
            columns.values[name].append(row[normalize_name(name)])
    return _checked(columns)


def _checked(columns: Columns) -> Columns:
    if not columns.lines:
        raise DataError(f"{columns.path} holds no row; it needs at least one")
    return columns


def read_texts(columns: Columns, name: str) -> list[str]:
    """A column as strings.

    Raises:
        DataError: a JSON value that is not a string, or one with an unpaired surrogate (half of an emoji, for
            example).
    """
    for line, value in zip(columns.lines, columns.values[name], strict=True):
        if not isinstance(value, str):
            raise DataError(f"{columns.path}, line {line}: {name} is {value!r}; it must be a string")
        if not _is_encodable(value):
            raise DataError(
                f"{columns.path}, line {line}: {name} has an unpaired surrogate ({value!r}); correct the text"
            )
    return list(columns.values[name])


def read_class_names(columns: Columns, name: str) -> list[str]:
    """A column as class names, in one Unicode form (NFC) and without blanks around them.

    JSON's numbers and booleans are named by their spelling.

    Raises:
        DataError: an empty name or one with an unpaired surrogate, null, NaN, a list or an object.
    """
    names = []
    for line, value in zip(columns.lines, columns.values[name], strict=True):
        spelling = normalize_name(value.strip()) if isinstance(value, str) else json.dumps(value)
        missing = value is None or value != value or isinstance(value, list | dict)  # NaN
        if missing or not spelling or not _is_encodable(spelling):
            raise DataError(f"{columns.path}, line {line}: {name} is {value!r}; every row needs a class")
        names.append(spelling)
    return names


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_numbers(columns: Columns, name: str) -> list[float]:
    """A column as finite numbers, float32's largest at most.

    Raises:
        DataError: something else.
    """
    found = []
    for line, value in zip(columns.lines, columns.values[name], strict=True):
        try:
            number = float("nan") if isinstance(value, bool | list | dict) or value is None else float(value)
        except (ValueError, OverflowError):
            number = float("nan")
        if not abs(number) <= _LARGEST:  # NaN is not either
            shown = repr(value) if len(str(value)) < 80 else f"a number of {len(str(value))} digits"
            raise DataError(
                f"{columns.path}, line {line}: {name} is {shown}; it must be a finite number, ±{_LARGEST:.1e} at most"
            )
        found.append(number)
    return found


def _listed(names: Sequence[str] | dict[str, Any]) -> str:
    shown = [repr(name) for name in list(names)[:20]]
    return ", ".join(shown) + (", …" if len(names) > 20 else "")
