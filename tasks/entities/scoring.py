"""Precision, recall and F1 of whole entities: one counts only where its type and both its ends are right.

The rules are those of the shared task's evaluation: a tag begins an entity if it is B-, or if it is I- and what stands
before it is O or of another type. So predictions need not be proper IOB2.

Source: Tjong Kim Sang & De Meulder (2003), section 2.3; the same counts as seqeval's default mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tasks.entities.conll import OUTSIDE

Span = tuple[str, int, int]
"""(type, first word, word after the last)."""


def entity_spans(tags: Sequence[str]) -> set[Span]:
    """The entities of one sentence's tags."""
    spans: set[Span] = set()
    start = 0
    previous = OUTSIDE
    for position, tag in enumerate([*tags, OUTSIDE]):
        continues = tag.startswith("I-") and tag[2:] == previous[2:]
        if previous != OUTSIDE and not continues:
            spans.add((previous[2:], start, position))
        if not continues:
            start = position
        previous = tag
    return spans


def entity_scores(true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, float]:
    """`precision`, `recall` and `f1` in [0, 1] over all sentences together; 0 where nothing can be counted.

    Args:
        true, predicted: for each sentence the tags of its words, of equal lengths.
    """
    n_true = n_predicted = n_right = 0
    for gold, guess in zip(true, predicted, strict=True):
        if len(gold) != len(guess):
            raise ValueError(f"{len(guess)} predicted tags for a sentence of {len(gold)} words")
        wanted, found = entity_spans(gold), entity_spans(guess)
        n_true += len(wanted)
        n_predicted += len(found)
        n_right += len(wanted & found)
    return {
        "precision": n_right / n_predicted if n_predicted else 0.0,
        "recall": n_right / n_true if n_true else 0.0,
        "f1": 2 * n_right / (n_true + n_predicted) if n_true + n_predicted else 0.0,
    }
