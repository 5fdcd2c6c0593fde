"""Text files: what is read, and what is said of files that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.errors import DataError
from tasks.text.columns import Quotes, read_class_names, read_columns, read_numbers, read_texts


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_csv_has_quoted_fields_with_line_breaks(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", '\ufefftext,label\r\n"say ""hi"",\nnow",yes\r\n\r\nplain,no\r\n')
    columns = read_columns(path, ["label", "text"], quotes="csv")
    assert columns.values == {"text": ['say "hi",\nnow', "plain"], "label": ["yes", "no"]}
    assert columns.lines == [3, 5]


def test_tsv_without_quoting_keeps_quotes_and_odd_separators(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", 'a\tb\n" open\tx\u2028y\x85z\n\'\t"\r\n')
    columns = read_columns(path, ["a", "b"], quotes="none")
    assert columns.values == {"a": ['" open', "'"], "b": ["x\u2028y\x85z", '"']}


def test_jsonl_keeps_types(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", '{"t": "x\\ny", "l": true, "more": []}\n\n{"t": "", "l": 3}\n')
    columns = read_columns(path, ["t", "l"], quotes="none")
    assert read_texts(columns, "t") == ["x\ny", ""]
    assert read_class_names(columns, "l") == ["true", "3"]
    assert columns.lines == [1, 3]


def test_rows_that_do_not_fit_are_skipped_where_asked_for(tmp_path: Path) -> None:
    """A tab in a text makes one field too many; what stands behind it would be read as the next column's."""
    path = written(tmp_path, "a.tsv", "a\tb\n1\t2\nbroken\n3\t4\textra\n")
    columns = read_columns(path, ["a", "b"], quotes="none", bad_rows="skip")
    assert (columns.values["b"], columns.n_skipped) == (["2"], 2)


def test_a_file_of_which_no_row_fits_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "1\tx\n0\ty\n")
    with pytest.raises(DataError, match=r"none of its 2 rows has the 3 fields 'a', 'b', 'c', divided by '\\t'"):
        read_columns(path, ["a"], quotes="none", header=("a", "b", "c"), bad_rows="skip")


BAD: list[tuple[str, str | bytes, Quotes, str]] = [
    ("a.csv", "", "csv", "is empty; its first row must name the columns, among them 'text', 'label'"),
    ("a.csv", "text,label\n", "csv", "holds no row"),
    ("a.csv", "text,class\nx,y\n", "csv", "has no column 'label'; its columns, divided by ',', are 'text', 'class'"),
    ("a.csv", "text;label\nx;y\n", "csv", "has no column 'text'; its columns, divided by ',', are 'text;label'"),
    ("a.csv", "text,label,label\nx,y,z\n", "csv", "has 2 columns 'label'"),
    ("a.csv", "text,label\nx,y,z\n", "csv", "line 2: 3 fields where the header has 2"),
    ("a.csv", 'text,label\n"x,y\n', "csv", "line 2: unexpected end of data; correct the quotes"),
    ("a.csv", "text,label\nx\xe9,y\n".encode("latin-1"), "csv", "is not UTF-8 text"),
    ("a.tsv", "text\tlabel\nx\n", "none", "line 2: 1 fields where the header has 2"),
    ("a.jsonl", '{"text": "x", "label": 1}\n{"text"\n', "none", "line 2: not JSON"),
    ("a.jsonl", "[" * 100_000, "none", "line 1: not JSON (maximum recursion depth"),
    ("a.jsonl", "[1, 2]\n", "none", "line 1: a JSON list; each line must be one object"),
    ("a.jsonl", '{"text": "x"}\n', "none", "line 1: no 'label'; its keys are 'text'"),
    ("a.jsonl", "\n", "none", "holds no row"),
    ("a.txt", "text\n", "none", "its name must end with one of .csv, .tsv, .jsonl"),
]


@pytest.mark.parametrize(("name", "content", "quotes", "message"), BAD, ids=[message for *_, message in BAD])
def test_bad_file_is_refused_with_file_and_line(
    tmp_path: Path, name: str, content: str | bytes, quotes: Quotes, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_columns(written(tmp_path, name, content), ["text", "label"], quotes=quotes)
    assert message in str(caught.value)
    assert name in str(caught.value)


def test_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_columns(tmp_path / "a.csv", ["text"], quotes="csv")


@pytest.mark.parametrize("value", ['""', '" "', "null", "[1]", "{}", "NaN", r'"\ud83d"'])
def test_class_must_be_there(tmp_path: Path, value: str) -> None:
    columns = read_columns(written(tmp_path, "a.jsonl", f'{{"l": {value}}}\n'), ["l"], quotes="none")
    with pytest.raises(DataError, match=r"line 1: l is .*; every row needs a class"):
        read_class_names(columns, "l")


def test_blanks_around_a_class_make_no_other_one(tmp_path: Path) -> None:
    columns = read_columns(written(tmp_path, "a.csv", "t,l\nx,1\ny, 1\nz,a b \n"), ["l"], quotes="csv")
    assert read_class_names(columns, "l") == ["1", "1", "a b"]


@pytest.mark.parametrize(
    "value", ['"x"', "null", "true", "NaN", "1e999", "[1]", "1e39", pytest.param("9" * 400, id="9s")]
)
def test_number_must_be_finite(tmp_path: Path, value: str) -> None:
    columns = read_columns(written(tmp_path, "a.jsonl", f'{{"l": {value}}}\n'), ["l"], quotes="none")
    with pytest.raises(DataError, match=r"line 1: l is .*; it must be a finite number"):
        read_numbers(columns, "l")


def test_text_must_be_a_string(tmp_path: Path) -> None:
    columns = read_columns(written(tmp_path, "a.jsonl", '{"t": 5}\n'), ["t"], quotes="none")
    with pytest.raises(DataError, match="line 1: t is 5; it must be a string"):
        read_texts(columns, "t")
    columns = read_columns(written(tmp_path, "a.jsonl", '{"t": "cut \\ud83d"}\n'), ["t"], quotes="none")
    with pytest.raises(DataError, match=r"line 1: t has an unpaired surrogate \('cut \\ud83d'\)"):
        read_texts(columns, "t")
