"""Which of the paper's variants (ablations, other learning rates) a result of ours is, told by its settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from search.paper.results import results
from search.paper.setups import model_id

FINETUNED = "finetune"
"""The variant of results whose training started from trained weights: no settings tell it."""
_SEARCHED = frozenset({"lr"})
"""Settings that any search may come to: they alone make no result a variant."""


def variant_of(*, task: str, model: str | None, optimizer: str, settings: Mapping[str, Any]) -> str | None:
    """The paper's name of the ablation that these settings are; None for the optimizer's main result.

    A variant is met where all its changes are among the settings; of several the one with the most changes. One that
    changes nothing but the learning rate is not told from a main result that found that rate itself.

    Args:
        task, optimizer: as the product names them.
        model: the paper's name, or one of ours that counts as it.
        settings: what constructed the optimizer.
    """
    met = [
        (len(changes), variant)
        for variant, changes in _variants(task, model_id(model) if model else None, optimizer)
        if all(name in settings and _same(settings[name], value) for name, value in changes.items())
    ]
    return max(met, default=(0, None), key=lambda pair: pair[0])[1]


@lru_cache(maxsize=1024)
def _variants(task: str, model: str | None, optimizer: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    return tuple(
        (result.variant, result.changes)
        for result in results(task=task, model=model, optimizer=optimizer, metric="accuracy")
        if result.variant is not None and result.changes.keys() - _SEARCHED
    )


def _same(ours: Any, theirs: Any) -> bool:
    return bool((list(ours) if isinstance(ours, tuple) else ours) == theirs)
