"""Columns of CSV, TSV and JSONL files, read strictly; every error names the file and the line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from tasks.data.trees import normalize_name
from tasks.errors import DataError

SUFFIXES = (".csv", ".tsv", ".jsonl")
_LONGEST_FIELD = 2**31 - 1  # csv refuses fields above 128 KiB by default
_LONGEST_SHOWN = 200
_LARGEST = 3.4e38  # float32's, in which models are trained
Quotes = Literal["auto", "csv", "none"]


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
    rest_without: Sequence[str] | None = None,
) -> Columns:
    """The wanted columns of a .csv, .tsv or .jsonl file; empty lines are skipped.

    Args:
        quotes: of .csv and .tsv: "csv", fields may be in double quotes and contain line breaks; "none", a quotation
            mark is text and each line a row; "auto", "none" for .tsv alone.
        header: names of the columns where the file's first row does not give them.
        bad_rows: of .csv and .tsv: what to do with rows that have more or fewer fields than the header, which have a
            delimiter in a text, for example.
        rest_without: read all other columns too, except these, which must exist; of .jsonl those of the first row.
            None: only the wanted ones.

    Raises:
        DataError: no such column or two of that name, a row that does not fit, an empty or unreadable file.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path} is not read: its name must end with one of {', '.join(SUFFIXES)}")
    if quotes == "auto":
        quotes = "none" if path.suffix.lower() == ".tsv" else "csv"
    try:
        with path.open(encoding="utf-8-sig", newline="" if quotes == "csv" else "\n") as file:
            if path.suffix.lower() == ".jsonl":
                return _read_json(path, file, wanted, rest_without)
            rows = _quoted(path, file) if quotes == "csv" else _plain(path, file)
            names = [normalize_name(name) for name in (header if header is not None else next(rows, (0, []))[1])]
            if not names:
                raise DataError(f"{path} is empty; its first row must name the columns, among them {listed(wanted)}")
            wanted = _chosen(path, names, wanted, rest_without)
            return _read_fields(path, rows, names, wanted, bad_rows=bad_rows)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); convert it") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _delimiter(path: Path) -> str:
    return "," if path.suffix.lower() == ".csv" else "\t"


def _chosen(path: Path, names: Sequence[str], wanted: Sequence[str], rest_without: Sequence[str] | None) -> list[str]:
    """The names of the columns to read, each of which appears once."""
    left_out = [normalize_name(name) for name in rest_without or ()]
    known = {normalize_name(name) for name in wanted} | set(left_out)
    chosen = [*wanted, *(name for name in names if name not in known and rest_without is not None)]
    for name in [*chosen, *left_out]:
        if not _is_encodable(name):
            raise DataError(f"{path}: the name of column {shortened(name)!r} has an unpaired surrogate; correct it")
        if (n := names.count(normalize_name(name))) != 1:
            raise DataError(
                f"{path} has {n or 'no'} column{'s' if n > 1 else ''} {shortened(name)!r}; its columns, divided by "
                f"{_delimiter(path)!r}, are {listed(names)}. Each column that is read must appear once: correct the "
                "header or name another"
            )
    return chosen


def _read_fields(
    path: Path, rows: Iterator[tuple[int, list[str]]], names: Sequence[str], wanted: Sequence[str], *, bad_rows: str
) -> Columns:
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
            f"{path}: none of its {n_skipped} rows has the {len(names)} fields {listed(names)}, divided by "
            f"{_delimiter(path)!r}; put the original file there"
        )
    return _checked(Columns(path, columns.lines, columns.values, n_skipped))


def _quoted(path: Path, file: TextIO) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(file, delimiter=_delimiter(path), strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}; correct the quotes, or set quotes: none") from error


def _plain(path: Path, file: TextIO) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(file, start=1):
        if text := line.removesuffix("\n").removesuffix("\r"):
            yield number, text.split(_delimiter(path))


def _read_json(path: Path, file: TextIO, wanted: Sequence[str], rest_without: Sequence[str] | None) -> Columns:
    columns = Columns(path, [], {})
    for number, line in enumerate(io.StringIO(file.read(), newline="\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON ({error}); each line must be one object") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: a JSON {type(row).__name__}; each line must be one object")
        row = {normalize_name(key): value for key, value in row.items()}
        if not columns.lines:
            if rest_without is not None:
                wanted = _chosen(path, list(row), wanted, rest_without)
            columns.values.update({name: [] for name in wanted})
        columns.lines.append(number)
        for name in wanted:
            if normalize_name(name) not in row:
                raise DataError(f"{path}, line {number}: no {name!r}; its keys are {listed(row)}")
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


def number_classes(
    names: Sequence[str], classes: Sequence[str], *, path: Path, lines: Sequence[int]
) -> NDArray[np.int64]:
    """The place of each row's class among the classes, (n,).

    Args:
        path, lines: the file and the line of each row, for errors.

    Raises:
        DataError: one is not among them.
    """
    number = {name: index for index, name in enumerate(classes)}
    for line, name in zip(lines, names, strict=True):
        if name not in number:
            raise DataError(
                f"{path}, line {line}: class {name!r} is not one of the classes {listed(classes)}, which the task or "
                "the training set has; correct the row, or add the class to the training set"
            )
    return np.asarray([number[name] for name in names], dtype=np.int64)


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
        number = as_number(value)
        if not abs(number) <= _LARGEST:  # NaN is not either
            shown = repr(value) if len(str(value)) < 80 else f"a number of {len(str(value))} digits"
            raise DataError(
                f"{columns.path}, line {line}: {name} is {shown}; it must be a finite number, ±{_LARGEST:.1e} at most"
            )
        found.append(number)
    return found


def as_number(value: object) -> float:
    """A field as a number; NaN where it is none. Python reads 1_000 as a number, but in a file it is a text."""
    if isinstance(value, bool | list | dict) or value is None or "_" in str(value):
        return float("nan")
    try:
        return float(str(value))
    except (ValueError, OverflowError):
        return float("nan")


def listed(names: Sequence[str] | dict[str, Any]) -> str:
    """The first of some names, for an error."""
    shown = [repr(shortened(name)) for name in list(names)[:20]]
    return ", ".join(shown) + (", …" if len(names) > 20 else "")


def shortened(name: str) -> str:
    """A name as it is shown: a file without line ends is one long name."""
    return name if len(name) <= _LONGEST_SHOWN else name[:_LONGEST_SHOWN] + "…"
