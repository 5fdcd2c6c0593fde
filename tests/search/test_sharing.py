"""Who may use how much of the cluster, by hand."""

from __future__ import annotations

import pytest

from search.placement import slots_for
from search.records import Capacity, CompetingStudy

ONE_CPU = Capacity(cpus=1, gpus=0)
EIGHT = Capacity(cpus=8, gpus=0)


def competitor(priority: int, n_runs: int, *, cpus: float = 1.0, gpus: float = 0.0) -> CompetingStudy:
    return CompetingStudy(priority=priority, n_runs=n_runs, cpus=cpus, gpus=gpus)


@pytest.mark.parametrize(
    ("competitors", "expected"),
    [
        ([], 8),  # alone: everything
        ([competitor(0, 8)], 4),  # an equal that could fill the cluster: half each
        ([competitor(0, 2)], 6),  # an equal that needs 2: the rest
        ([competitor(0, 8), competitor(0, 8)], 3),  # three equals: 8 / 3, rounded up
        ([competitor(5, 8)], 0),  # somebody more important needs everything
        ([competitor(5, 5)], 3),  # … or leaves some
        ([competitor(-5, 8)], 8),  # somebody less important: as if alone
        ([competitor(5, 2), competitor(0, 8), competitor(-1, 8)], 3),  # (8 - 2) / 2
        ([competitor(0, 3, cpus=2)], 4),  # an equal with larger runs holds 6: still the fair share
    ],
)
def test_shares_of_eight_cpus(competitors: list[CompetingStudy], expected: int) -> None:
    assert slots_for(ONE_CPU, priority=0, cluster=EIGHT, competitors=competitors) == expected


def test_a_quarter_of_a_card_packs_four_on_each() -> None:
    each = Capacity(cpus=2, gpus=0.25)
    assert slots_for(each, priority=0, cluster=Capacity(cpus=64, gpus=2), competitors=[]) == 8
    assert slots_for(each, priority=0, cluster=Capacity(cpus=6, gpus=2), competitors=[]) == 3  # CPUs run out first


def test_a_study_that_fits_nowhere_yet_waits_with_one_run() -> None:
    """Ray's autoscaler adds a node only when something asks for it."""
    assert slots_for(Capacity(cpus=16, gpus=1), priority=0, cluster=EIGHT, competitors=[]) == 1


A_SIXTEENTH = Capacity(cpus=1, gpus=1 / 16)
ONE_CARD = Capacity(cpus=64, gpus=1)


def on_the_card(priority: int, n_runs: int, n_at_once: int) -> CompetingStudy:
    """A study of `gpus: auto` of whose runs so many share a card."""
    return competitor(priority, n_runs, gpus=1 / n_at_once)


@pytest.mark.parametrize(
    ("competitors", "expected"),
    [
        ([on_the_card(0, 16, 16)], 8),  # an equal that could fill the card: half each
        ([on_the_card(0, 4, 16)], 12),  # an equal that holds a quarter: the rest
        ([on_the_card(0, 4, 8)], 8),  # … or half, with larger runs
        ([on_the_card(1, 4, 16)], 12),  # somebody more important holds a quarter
        ([on_the_card(1, 16, 16)], 0),  # … or everything
        ([on_the_card(-1, 16, 16)], 16),  # somebody less important
        ([on_the_card(0, 16, 16), on_the_card(0, 8, 8)], 6),  # three equals: 16 / 3, rounded up
        ([on_the_card(0, 2, 16), on_the_card(0, 2, 8)], 10),  # three equals of whom two hold 6 of 16
        ([on_the_card(1, 4, 16), on_the_card(0, 16, 16)], 6),  # (16 - 4) / 2
        ([on_the_card(2, 4, 16), on_the_card(1, 4, 8)], 4),  # two that are more important hold three quarters
    ],
)
def test_shares_of_a_card_that_runs_share(competitors: list[CompetingStudy], expected: int) -> None:
    """Each run of the others counts by its part of the card, not as a whole one."""
    assert slots_for(A_SIXTEENTH, priority=0, cluster=ONE_CARD, competitors=competitors) == expected
