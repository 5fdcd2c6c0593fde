"""Validation questions held out of the training file: whole articles, so that none of their passages is trained on."""

from __future__ import annotations

import numpy as np

from tasks.answering.squad import QuestionSet
from tasks.engine.batches import Rows
from tasks.engine.seeds import derive_seed
from tasks.errors import DataError

MIN_ARTICLES = 10  # of fewer, passages are held out instead


def hold_out(questions: QuestionSet, *, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """(kept, held out): numbers of questions, rising; about `fraction` of them are held out.

    Raises:
        DataError: all questions are of one passage.
    """
    passages = np.array([question.passage for question in questions.questions], dtype=np.int64)
    groups = np.array(questions.articles, dtype=np.int64)[passages]
    if len(np.unique(groups)) < MIN_ARTICLES:
        groups = passages
    names, counts = np.unique(groups, return_counts=True)
    if len(names) < 2:
        raise DataError("all questions are of one passage, so none can be held out for validation; add passages")
    turn = np.random.Generator(np.random.PCG64(derive_seed(seed, "split"))).permutation(len(names))
    reached = np.cumsum(counts[turn])
    n_groups = int(np.abs(reached - fraction * len(groups)).argmin()) + 1
    chosen = names[turn[: min(n_groups, len(names) - 1)]]
    held_out = np.isin(groups, chosen)
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
