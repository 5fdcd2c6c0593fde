"""Metrics of predictions: accuracy and cross-entropy on the device, GLUE's metrics on the host.

The latter are tested against scikit-learn and SciPy, which take seconds to import.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


def classification_metrics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy in [0, 1] and mean cross-entropy in nats, without label smoothing.

    Args:
        logits: shape (n, classes), any float dtype.
        labels: shape (n,), int64.
    """
    logits = logits.float()
    correct = (logits.argmax(dim=1) == labels).sum()
    loss = nn.functional.cross_entropy(logits, labels)
    accuracy, loss_value = torch.stack([correct.double() / len(labels), loss.double()]).tolist()
    return {"accuracy": accuracy, "loss": loss_value}


Labels = NDArray[np.int64]
Values = NDArray[np.float64]


def confusion(predicted: Labels, labels: Labels, *, n_classes: int) -> NDArray[np.int64]:
    """Counts (n_classes, n_classes): rows are the true classes, columns the predicted ones."""
    return np.bincount(labels * n_classes + predicted, minlength=n_classes**2).reshape(n_classes, n_classes)


def f1_of(matrix: NDArray[np.int64], klass: int) -> float:
    """F1 of one class from a confusion matrix; 0 where it is neither present nor predicted."""
    both = float(matrix[klass].sum() + matrix[:, klass].sum())
    return 2.0 * float(matrix[klass, klass]) / both if both else 0.0


def macro_f1(matrix: NDArray[np.int64]) -> float:
    """Mean F1 of the classes that are present or predicted."""
    seen = np.flatnonzero(matrix.sum(axis=0) + matrix.sum(axis=1))
    return float(np.mean([f1_of(matrix, int(klass)) for klass in seen]))


def matthews(matrix: NDArray[np.int64]) -> float:
    """Matthews correlation in [−1, 1]; NaN where all labels are of one class.

    Where all predictions are of one class it is 0, as in scikit-learn and GLUE: they tell nothing of the labels.

    Source: Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient" (2004).
    """
    counts = matrix.astype(np.float64)
    n, hits = counts.sum(), np.trace(counts)
    true, predicted = counts.sum(axis=1), counts.sum(axis=0)
    of_labels, of_predictions = n**2 - (true**2).sum(), n**2 - (predicted**2).sum()
    if not of_labels:
        return math.nan
    return float((hits * n - true @ predicted) / math.sqrt(of_labels * of_predictions)) if of_predictions else 0.0


def class_scores(logits: Tensor, labels: Tensor, *, names: Sequence[str]) -> dict[str, float]:
    """Accuracy, mean cross-entropy in nats as `loss`, and the scores that are named.

    Args:
        logits: float32 (n, classes).
        labels: int64 (n,), on the same device.
        names: "f1" is that of class 1 of two, "macro_f1" the mean over classes (reported as f1), "mcc" the Matthews
            correlation.
    """
    predicted, true = logits.argmax(dim=1).cpu().numpy(), labels.cpu().numpy()
    matrix = confusion(predicted, true, n_classes=logits.shape[1])
    scores = {
        "accuracy": float(np.trace(matrix) / matrix.sum()),
        "loss": float(nn.functional.cross_entropy(logits, labels)),
    }
    if "f1" in names:
        scores["f1"] = f1_of(matrix, 1)
    if "macro_f1" in names:
        scores["f1"] = macro_f1(matrix)
    if "mcc" in names:
        scores["mcc"] = matthews(matrix)
    return scores


def value_scores(predicted: Tensor, labels: Tensor, *, target: Tensor) -> dict[str, float]:
    """The correlations with the labels, and the mean squared error from `target`, what was trained for, as `loss`."""
    a, b = predicted.cpu().numpy(), labels.cpu().numpy()
    loss = float(nn.functional.mse_loss(predicted, target))
    return {"spearman": spearman(a, b), "pearson": pearson(a, b), "loss": loss}


def pearson(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Pearson's correlation in [−1, 1]; NaN where one side does not vary."""
    a, b = (np.asarray(values, dtype=np.float64) - np.mean(values, dtype=np.float64) for values in (a, b))
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return max(-1.0, min(1.0, float(a @ b) / scale)) if scale else math.nan


def spearman(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Spearman's rank correlation in [−1, 1], ties share their mean rank; NaN where one side does not vary."""
    return pearson(_ranks(a), _ranks(b))


def _ranks(values: NDArray[Any]) -> Values:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Values = (ends - (counts - 1) / 2.0)[inverse]
    return ranks
