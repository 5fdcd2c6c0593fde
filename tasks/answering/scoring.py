"""Exact match and F1 as SQuAD's official evaluations count them, and the best threshold for answering "none".

Both compare answers without case, punctuation, articles and runs of blanks; F1 is that of the words the two share, each
as often as both have it. A question with several answers counts the best. The two versions differ where such a bare
answer is empty: 1.1 gives it no F1; 2.0 drops it from the true answers, and takes "no answer" as the only right one
where none remains.

Source: Rajpurkar et al. (2016), section 6.1; Rajpurkar et al. (2018), sections 5 and 6; checked against the official
scripts' rules in tests.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True)
class Score:
    """Of one answer, both in [0, 1]."""

    exact_match: float
    f1: float


def bare(text: str) -> str:
    """An answer as it is compared: lower case, without punctuation (ASCII's) and articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def score_v1(answer: str, true: Sequence[str]) -> Score:
    """Version 1.1's score of an answer against the true ones, of which there is at least one."""
    given = bare(answer)
    wanted = [bare(text) for text in true]
    return Score(float(given in wanted), max(_overlap(given.split(), text.split()) for text in wanted))


def score_v2(answer: str, true: Sequence[str]) -> Score:
    """Version 2.0's: `true` may be empty, and the empty answer says that there is none."""
    given = bare(answer)
    wanted = [text for text in map(bare, true) if text] or [""]
    if not given or not wanted[0]:
        agree = float(given in wanted)
        return Score(agree, agree)
    return Score(float(given in wanted), max(_overlap(given.split(), text.split()) for text in wanted))


def _overlap(given: list[str], wanted: list[str]) -> float:
    """F1 of the words that two answers share; 0 where they share none."""
    shared = (Counter(given) & Counter(wanted)).total()
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


@dataclass(frozen=True)
class Threshold:
    """Questions whose margin is above `margin` are taken as unanswerable; `score` is the mean that results."""

    margin: float
    score: float


def best_threshold(
    margins: NDArray[np.float64], scores: NDArray[np.float64], answerable: NDArray[np.bool_]
) -> Threshold:
    """The margin at which answering "none" makes the mean score highest; of equal ones the lowest.

    Args:
        margins: (n,), how much better "none" looks than the best span.
        scores: (n,), the score of the best span against the true answers.
        answerable: (n,), whether there is a true answer.

    Returns:
        A threshold halfway between two margins, or infinite at either end.
    """
    order = np.argsort(margins, kind="stable")
    gains = np.where(answerable, scores, scores - 1.0)[order]  # of answering, over saying "none"
    totals = (~answerable).sum() + np.concatenate([[0.0], np.cumsum(gains)])
    ranked = margins[order]
    # Equal margins fall on one side together.
    cuts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1], [True]]))
    n_answered = int(cuts[np.argmax(totals[cuts])])
    if n_answered == 0:
        margin = -math.inf
    elif n_answered == len(ranked):
        margin = math.inf
    else:
        margin = float(ranked[n_answered - 1] / 2 + ranked[n_answered] / 2)
    return Threshold(margin=margin, score=float(totals[n_answered] / len(margins)))
