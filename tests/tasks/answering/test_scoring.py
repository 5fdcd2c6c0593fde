"""SQuAD's scores: by hand, against torchmetrics (1.1), and against the rules written a second way (2.0)."""

from __future__ import annotations

import json
import random
import re
import string
from pathlib import Path

import numpy as np
import pytest

from tasks.answering.squad import Score, bare, best_threshold, score_v1, score_v2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel-Tower!", "eiffeltower"),
        ("an apple, a pear", "apple pear"),
        ("theatre", "theatre"),
        ("the", ""),
        ("  U.S.  ", "us"),
        ("“quoted”", "“quoted”"),  # only ASCII's punctuation goes
        ("a.m.", "am"),
        ("A\tB\nC", "b c"),
    ],
)
def test_bare(text: str, expected: str) -> None:
    assert bare(text) == expected


def test_scores_by_hand() -> None:
    # 'Denver Broncos' against 'the Denver Broncos!' is exact; against 'Broncos' it shares 1 of 2 and 1 words: 2/3.
    assert score_v1("Denver Broncos", ["the Denver Broncos!"]) == Score(1.0, 1.0)
    assert score_v1("Denver Broncos", ["Broncos"]) == Score(0.0, pytest.approx(2 / 3))
    # The best of several answers; a repeated word counts as often as both have it: 2·2 / (3 + 2).
    assert score_v1("no no no", ["yes", "no no"]) == Score(0.0, pytest.approx(4 / 5))
    assert score_v1("Paris", ["London"]) == Score(0.0, 0.0)


def test_where_the_versions_differ() -> None:
    # Bare of its article nothing is left: 1.1 finds it equal but sharing no word; 2.0 takes it for no answer.
    assert score_v1("the", ["a"]) == Score(1.0, 0.0)
    assert score_v2("the", ["a"]) == Score(1.0, 1.0)
    assert score_v2("", []) == Score(1.0, 1.0)
    assert score_v2("Paris", []) == Score(0.0, 0.0)
    assert score_v2("", ["Paris"]) == Score(0.0, 0.0)
    assert score_v2("Paris", ["the", "Paris"]) == Score(1.0, 1.0)


def some_answers(rng: random.Random) -> tuple[str, list[str]]:
    words = ["the", "a", "an", "Rhine", "rhine,", "U.S.", "1066", "of", "battle", "-", "…"]

    def text() -> str:
        return " ".join(rng.choices(words, k=rng.randrange(1, 5)))

    return text(), [text() for _ in range(rng.randrange(1, 4))]


# [answer, true answers, exact match, F1] as torchmetrics 1.9.0 counts them; importing it takes longer than all of this.
TORCHMETRICS = json.loads((Path(__file__).parent / "data" / "squad_scores.json").read_text())


@pytest.mark.parametrize(("answer", "true", "exact_match", "f1"), TORCHMETRICS)
def test_version_1_is_torchmetrics(answer: str, true: list[str], exact_match: float, f1: float) -> None:
    assert score_v1(answer, true) == Score(exact_match, pytest.approx(f1, abs=1e-6))


def second_opinion(answer: str, true: list[str]) -> Score:
    """Version 2.0's rules, step by step: precision and recall of the words, each answer for itself."""

    def words(text: str) -> list[str]:
        letters = [character for character in text.lower() if character not in string.punctuation]
        return re.sub(r"\b(a|an|the)\b", " ", "".join(letters)).split()

    def one(gold: list[str], guess: list[str]) -> tuple[float, float]:
        if not gold or not guess:
            return float(gold == guess), float(gold == guess)
        left, right = list(gold), 0
        for word in guess:
            if word in left:
                left.remove(word)
                right += 1
        precision, recall = right / len(guess), right / len(gold)
        return float(gold == guess), 2 * precision * recall / (precision + recall) if right else 0.0

    golds = [words(text) for text in true if words(text)] or [[]]
    pairs = [one(gold, words(answer)) for gold in golds]
    return Score(max(exact for exact, _ in pairs), max(f1 for _, f1 in pairs))


def test_version_2_by_a_second_implementation() -> None:
    rng = random.Random(2)
    for _ in range(2000):
        answer, true = some_answers(rng)
        answer, true = rng.choice([answer, answer, ""]), rng.choice([true, true, []])
        ours, theirs = score_v2(answer, true), second_opinion(answer, true)
        assert ours.exact_match == theirs.exact_match
        assert ours.f1 == pytest.approx(theirs.f1)


def test_best_threshold_by_hand() -> None:
    # By rising margin: answerable and right, unanswerable, answerable and half right. Answering the first alone gives
    # 1 + 1 + 0 of 3; all of them 1 + 0 + ½.
    margins, scores = np.array([-3.0, 5.0, 1.0]), np.array([1.0, 0.5, 0.0])
    answerable = np.array([True, True, False])
    best = best_threshold(margins, scores, answerable)
    assert best.score == pytest.approx(2 / 3)
    assert best.margin == -1.0
    assert best_threshold(margins, scores, np.zeros(3, bool)).margin == -np.inf
    assert best_threshold(margins, np.ones(3), np.ones(3, bool)).margin == np.inf


def test_best_threshold_is_the_best_of_all() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        n = int(rng.integers(1, 9))
        margins = rng.integers(-2, 3, size=n).astype(float)  # with ties
        answerable = rng.random(n) < 0.6
        scores = np.where(answerable, rng.random(n).round(1), 0.0)

        thresholds = np.array([*margins, -np.inf, np.inf])
        means = np.where(margins > thresholds[:, None], ~answerable, scores).mean(axis=1)
        best = best_threshold(margins, scores, answerable)
        assert best.score == pytest.approx(np.where(margins > best.margin, ~answerable, scores).mean())
        assert best.score == pytest.approx(means.max())
