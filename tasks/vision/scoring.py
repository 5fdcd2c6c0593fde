"""Accuracy and cross-entropy of a split."""

from __future__ import annotations

import torch
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
