"""Ablations are told by their settings."""

from __future__ import annotations

import pytest

from search.paper.comparison import variant_of


@pytest.mark.parametrize(
    ("optimizer", "settings", "variant"),
    [
        ("admetas", {"lr": 0.1, "beta": 0.2}, None),
        ("admetas", {"lr": 0.1, "slow_step": None}, "-LF"),
        ("admetas", {"dema": "off", "beta": 0.2}, "-DEMA"),
        ("admetas", {"dema": "off", "beta": 0.0}, "-LB"),
        ("admetas", {"dema": "off", "beta": 0.0, "slow_step": None}, "-LB-LF"),
        ("admetar", {"dema": "off", "betas": (0.0, 0.999)}, "-LB"),
        ("admetar", {"slow_step": 0.5}, "constant LF"),
        ("sgdm", {"lr": 0.5}, None),  # a search may come to this rate by itself
    ],
)
def test_variant_of(optimizer: str, settings: dict[str, object], variant: str | None) -> None:
    assert variant_of(task="cifar10", model="resnet110_preact", optimizer=optimizer, settings=settings) == variant
    assert variant_of(task="digits", model=None, optimizer=optimizer, settings=settings) is None
