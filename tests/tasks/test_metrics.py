"""GLUE's metrics against scikit-learn and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from tasks.metrics import confusion, f1_of, macro_f1, matthews, pearson, spearman

CASES = [(seed, n_classes) for seed in range(4) for n_classes in (2, 3, 7)]


@pytest.mark.parametrize(("seed", "n_classes"), CASES)
def test_classification_scores_equal_scikit_learns(seed: int, n_classes: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, size=57)
    predicted = np.where(rng.random(57) < 0.6, labels, rng.integers(0, n_classes, size=57))
    matrix = confusion(predicted, labels, n_classes=n_classes)
    assert (matrix == metrics.confusion_matrix(labels, predicted, labels=range(n_classes))).all()
    assert matthews(matrix) == pytest.approx(metrics.matthews_corrcoef(labels, predicted), abs=1e-12)
    assert macro_f1(matrix) == pytest.approx(metrics.f1_score(labels, predicted, average="macro"), abs=1e-12)
    expected = metrics.f1_score(labels == 1, predicted == 1)
    assert f1_of(matrix, 1) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("predicted", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 0, 1]])
def test_one_sided_predictions_score_as_scikit_learn_says(predicted: list[int]) -> None:
    labels = [0, 1, 1, 0]
    matrix = confusion(np.array(predicted), np.array(labels), n_classes=2)
    assert matthews(matrix) == pytest.approx(metrics.matthews_corrcoef(labels, predicted))
    assert f1_of(matrix, 1) == pytest.approx(metrics.f1_score(labels, predicted, zero_division=0.0))


@pytest.mark.parametrize("seed", range(4))
def test_correlations_equal_scipys_with_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=80).astype(np.float32)
    b = np.round(a + rng.normal(size=80), 0)  # many equal values
    assert pearson(a, b) == pytest.approx(stats.pearsonr(a.astype(np.float64), b).statistic, abs=1e-12)
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


def test_labels_of_one_class_have_no_matthews_correlation() -> None:
    """scikit-learn has 0 there too; a score that no prediction could change is no result."""
    assert math.isnan(matthews(confusion(np.array([0, 1, 0]), np.array([1, 1, 1]), n_classes=2)))


def test_a_constant_side_has_no_correlation() -> None:
    assert math.isnan(pearson(np.ones(5), np.arange(5)))
    assert math.isnan(spearman(np.arange(5), np.ones(5)))
