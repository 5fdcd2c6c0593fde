"""Entity scores: worked by hand, and equal to seqeval's on random tags."""

from __future__ import annotations

import random

import pytest

from tasks.entities.task import entity_scores, entity_spans


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("B-PER I-PER O B-LOC", {("PER", 0, 2), ("LOC", 3, 4)}),
        ("B-PER B-PER", {("PER", 0, 1), ("PER", 1, 2)}),
        ("O I-ORG I-ORG", {("ORG", 1, 3)}),  # begun without a B-
        ("B-PER I-ORG", {("PER", 0, 1), ("ORG", 1, 2)}),
        ("O O", set()),
        ("", set()),
    ],
)
def test_spans(tags: str, spans: set[tuple[str, int, int]]) -> None:
    assert entity_spans(tags.split()) == spans


def test_scores_by_hand() -> None:
    # True: PER, LOC, ORG. Predicted: PER right, LOC too short, MISC made up. 1 of 3 both ways.
    true = [["B-PER", "I-PER", "O"], ["B-LOC", "I-LOC", "O", "B-ORG"]]
    guess = [["B-PER", "I-PER", "O"], ["B-LOC", "O", "B-MISC", "O"]]
    assert entity_scores(true, guess) == pytest.approx({"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3})
    # Half of two predictions right, one of four found: F1 = 2 · ½ · ¼ / ¾.
    scores = entity_scores([["B-A", "B-B", "B-C", "B-D"]], [["B-A", "B-C", "O", "O"]])
    assert scores == pytest.approx({"precision": 1 / 2, "recall": 1 / 4, "f1": 1 / 3})


@pytest.mark.parametrize(("true", "guess"), [("O", "O"), ("B-A", "O"), ("O", "B-A")])
def test_nothing_to_count_is_zero(true: str, guess: str) -> None:
    assert entity_scores([[true]], [[guess]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 predicted tags for a sentence of 1"):
        entity_scores([["O"]], [["O", "O"]])


def test_equal_to_seqeval() -> None:
    reference = pytest.importorskip("seqeval.metrics")
    rng = random.Random(0)
    tags = ["O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
    for _ in range(20):
        lengths = [rng.randrange(1, 12) for _ in range(30)]
        true, guess = ([[rng.choice(tags) for _ in range(n)] for n in lengths] for _ in range(2))
        guess = [
            [g if rng.random() < 0.4 else t for t, g in zip(a, b, strict=True)]
            for a, b in zip(true, guess, strict=True)
        ]
        ours = entity_scores(true, guess)
        assert ours["precision"] == pytest.approx(reference.precision_score(true, guess), abs=1e-12)
        assert ours["recall"] == pytest.approx(reference.recall_score(true, guess), abs=1e-12)
        assert ours["f1"] == pytest.approx(reference.f1_score(true, guess), abs=1e-12)
