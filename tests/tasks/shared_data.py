"""Where tests find data sets that are not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_case(name: str) -> Path:
    """A file or folder of other people's kinds of data, in the folder `cases` beside the data; skips where absent."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("ADMETA_TEST_DATA", beside)).parent / "cases" / name
    if not path.exists():
        pytest.skip(f"{path} is not there; set ADMETA_TEST_DATA to a folder that has a folder 'cases' beside it")
    return path


def shared_data(*names: str) -> Path:
    """The folder that holds `names`: $ADMETA_TEST_DATA, or shared/data beside the checkout; skips where absent."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("ADMETA_TEST_DATA", beside))
    if missing := [name for name in names if not (folder / name).exists()]:
        pytest.skip(f"{missing[0]} is not in {folder}; set ADMETA_TEST_DATA to the folder that holds it")
    return folder


def shared_public(name: str) -> Path:
    """A file of others' public results: in $ADMETA_TEST_PUBLIC, or shared/public beside the checkout; else skips."""
    beside = (folder / "shared" / "public" for folder in Path(__file__).resolve().parents[2:])
    folders = [Path(os.environ["ADMETA_TEST_PUBLIC"])] if "ADMETA_TEST_PUBLIC" in os.environ else beside
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if found is None:
        pytest.skip(f"{name} is not there: set ADMETA_TEST_PUBLIC to the folder that holds it")
    return found
