"""The remaining time of a study, against simulated ones whose end is known."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import pytest

from admeta.client.models import SearchView, StudyView
from search.states import AttemptState, Stage, StudyState
from service.database.queries import AttemptSpan
from service.database.queries.activity import remaining

START = datetime(2026, 1, 1, tzinfo=UTC)
FULL_S, PRUNED_S, N_TRIALS, N_SEEDS = 100.0, 25.0, 40, 5
RATES: dict[str, Callable[[float], float]] = {
    "none": lambda share: 0.0,
    "constant": lambda share: 0.6,
    "late": lambda share: 0.7 * min(1.0, share / 0.2),
}
"""How many of the trials are pruned, by the share of the search that is done."""


def simulated(*, n_slots: int, seed: int, rate: str = "constant") -> list[AttemptSpan]:
    """Three searches whose trials are pruned at a rate, then five confirm runs of each."""
    draw = random.Random(seed)
    runs = [(label, number, Stage.SEARCH) for number in range(N_TRIALS) for label in "abc"]
    runs += [(label, number, Stage.CONFIRM) for number in range(N_SEEDS) for label in "abc"]
    free = [0.0] * n_slots
    spans = []
    for label, number, stage in runs:
        begin = heapq.heappop(free)
        pruned = stage is Stage.SEARCH and draw.random() < RATES[rate](number / N_TRIALS)
        end = begin + (PRUNED_S if pruned else FULL_S) * draw.uniform(0.8, 1.2)
        heapq.heappush(free, end)
        spans.append(
            AttemptSpan(
                label=label, trial=number, stage=stage, seed=number, attempt=1, node="one", device="cpu",
                state=AttemptState.PRUNED if pruned else AttemptState.COMPLETE,
                started_at=START + timedelta(seconds=begin), finished_at=START + timedelta(seconds=end),
            )
        )  # fmt: skip
    return spans


def seen_at(spans: list[AttemptSpan], now: datetime, **budget: Any) -> tuple[StudyView, list[AttemptSpan]]:
    """The study and its attempts as they are in the database at a time."""
    begun = [span for span in spans if span.started_at <= now]
    there = [
        AttemptSpan(**{**vars(span), "state": AttemptState.RUNNING, "finished_at": None})
        if span.finished_at and span.finished_at > now
        else span
        for span in begun
    ]
    searches = []
    for label in "abc":
        ended = [span for span in there if span.label == label and span.finished_at is not None]
        n_confirms = sum(span.stage is Stage.CONFIRM for span in ended)
        searches.append(
            SearchView.model_construct(
                label=label, n_trials=N_TRIALS, n_complete=len(ended) - n_confirms, n_pruned=0, n_failed=0,
                n_confirm_runs=N_SEEDS, n_confirm_finished=n_confirms,
            )
        )  # fmt: skip
    study = StudyView.model_construct(
        state=StudyState.RUNNING, started_at=START, finished_at=None, searches=searches, definition={"budget": budget}
    )
    return study, there


@pytest.mark.parametrize("n_slots", [1, 4, 8])
@pytest.mark.parametrize(
    ("rate", "most", "of_linear"), [("none", 0.03, 1.2), ("constant", 0.1, 0.6), ("late", 0.16, 0.8)]
)
def test_the_remaining_time_is_nearer_to_the_true_one_than_a_count_of_runs(
    n_slots: int, rate: str, most: float, of_linear: float
) -> None:
    errors, linear_errors = [], []
    for seed in range(10):
        spans = simulated(n_slots=n_slots, seed=seed, rate=rate)
        total = max(span.finished_at for span in spans if span.finished_at) - START
        for share in (0.2, 0.35, 0.5, 0.7):
            now = START + share * total
            left = (1 - share) * total.total_seconds()
            study, there = seen_at(spans, now)
            found = remaining(study, there, now=now)
            assert found is not None
            assert found.n_at_once == n_slots
            errors.append(abs(found.seconds / left - 1))
            n_done = sum(span.finished_at is not None for span in there)
            linear = share * total.total_seconds() * (len(spans) - n_done) / n_done
            linear_errors.append(abs(linear / left - 1))
    assert median(errors) < most
    assert median(errors) < of_linear * median(linear_errors)


def test_the_remaining_time_has_sensitivity_runs_before_they_are_made() -> None:
    now = START + timedelta(seconds=1000)
    study, there = seen_at(simulated(n_slots=2, seed=0), now)
    searches = [one.model_copy(update={"stage": "search"}) for one in study.searches]
    definition = {**study.definition, "confirm": {"top_k": 1}, "sensitivity": {"points": 7, "seeds": 2}}
    asked = study.model_copy(update={"searches": searches, "definition": definition})
    searches[2] = searches[2].model_copy(update={"n_sensitivity_runs": 5, "n_sensitivity_finished": 4})
    searches[0] = searches[0].model_copy(update={"label": "a.defaults"})
    without, found = (remaining(one, there, now=now) for one in (study, asked))
    assert without is not None
    assert found is not None
    assert (without.n_sensitivity_runs, found.n_sensitivity_runs) == (0, 6 * 2 + 1)
    assert found.seconds > without.seconds


def test_the_remaining_time_ends_with_the_hours() -> None:
    spans = simulated(n_slots=2, seed=0)
    study, there = seen_at(spans, START + timedelta(seconds=1000), max_hours=1000 / 3600 + 0.01)
    found = remaining(study, there, now=START + timedelta(seconds=1000))
    assert found is not None
    assert found.seconds == pytest.approx(36)


@pytest.mark.parametrize("n_slots", [1, 4, 8])
@pytest.mark.parametrize(
    ("rate", "most", "of_epochs"), [("none", 0.08, 1.1), ("constant", 0.15, 2.0), ("late", 0.15, 2.1)]
)
def test_an_early_estimate_is_of_an_earlier_study_or_of_the_first_epochs(
    n_slots: int, rate: str, most: float, of_epochs: float
) -> None:
    """Before and after the workers start. From the first epochs alone it is too long by what will be pruned."""
    errors, ratios = [], []
    for seed in range(10):
        spans, earlier = (simulated(n_slots=n_slots, seed=seed + more, rate=rate) for more in (0, 100))
        total_s = (max(span.finished_at for span in spans if span.finished_at) - START).total_seconds()
        study, _ = seen_at(spans, START)
        found = remaining(study, [], earlier=earlier, now=START)
        assert found is not None
        now = START + timedelta(seconds=10)
        study, there = seen_at(spans, now)
        there = [replace(span, epoch=1, epoch_s=(FULL_S if span.finished_at is None else 0) / 10) for span in there]
        ten_epochs = study.model_copy(update={"definition": {"task": {"epochs": 10}, "budget": {}}})
        alone, both = (remaining(ten_epochs, there, earlier=more, now=now) for more in ((), earlier))
        assert alone is not None
        assert both is not None
        errors += [abs(found.seconds / total_s - 1), abs(both.seconds / (total_s - 10) - 1)]
        ratios.append(alone.seconds / (total_s - 10))
    assert median(errors) < most
    assert 0.9 < median(ratios) < of_epochs


def test_the_start_of_the_first_workers_does_not_count_for_each_trial() -> None:
    """Half a minute until the first of eight epochs of a second, on two slots: the rest is 118 runs of 8 s."""
    study, there = seen_at(simulated(n_slots=2, seed=0, rate="none"), START + timedelta(seconds=30))
    eight_epochs = study.model_copy(update={"definition": {"task": {"epochs": 8}, "budget": {}}})
    first = [replace(span, epoch=1, epoch_s=1.0) for span in there]
    found = remaining(eight_epochs, first, now=START + timedelta(seconds=30))
    assert found is not None
    n_runs = 3 * (N_TRIALS + N_SEEDS)
    assert found.seconds == pytest.approx(n_runs * 8 / 2, rel=0.03)


def test_there_is_none_before_the_first_epoch() -> None:
    spans = simulated(n_slots=2, seed=0)
    study, there = seen_at(spans, START + timedelta(seconds=10))
    assert remaining(study, there, now=START + timedelta(seconds=10)) is None
    study, there = seen_at(spans, START + timedelta(seconds=1000))
    ended = study.model_copy(update={"state": StudyState.COMPLETED})
    assert remaining(ended, there, now=START + timedelta(seconds=1000)) is None
