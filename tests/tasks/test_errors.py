"""Errors travel from workers to the driver: pickled, they keep message and fields."""

from __future__ import annotations

import pickle

import pytest

from tasks.errors import DataError, Diverged, OutOfMemory, TaskError, UnknownTaskError

ERRORS = [
    Diverged(7, loss=float("inf")),
    Diverged(9, loss=float("nan"), what="validation loss"),
    OutOfMemory(phase="training", device="cuda:0", detail="Tried to allocate 2 GiB"),
    UnknownTaskError("digit", ["digits"]),
    DataError("gone"),
]


@pytest.mark.parametrize("error", ERRORS, ids=[type(error).__name__ for error in ERRORS])
def test_pickled_whole(error: TaskError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert repr(vars(copy)) == repr(vars(error))
