"""One optimizer under two labels: with one search each the luckier search is "better", with several none is."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import optuna
import pytest

from search.analysis import Rules, Sample, compare
from search.assignment import Assignment
from search.states import Direction, Stage
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define

N_STUDIES = 60
SPACE = {"lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True}}


def better(number: int, *, searches: int, sampler: str, gain: float = 0.0) -> str | None:
    """The label that a study calls better: four trials a search, three confirm seeds, noise of 0.02 between seeds."""
    rng = np.random.default_rng(number)
    store = MemoryStore()
    study = store.add_study(
        define(
            task={"name": "synthetic", "model": "idle", "epochs": 1},
            optimizers=[{"name": "sgd", "label": label, "space": SPACE} for label in ("a", "b")],
            searches=searches,
            sampler={"name": sampler, "seed": number},
            confirm={"top_k": 1, "seeds": [0, 1, 2]},
        )
    )

    def score(assignment: Assignment, epoch: int) -> float:
        quality = 1 - 0.2 * abs(math.log10(assignment.settings["lr"]) + 2)
        return quality + gain * assignment.label.startswith("b") + 0.02 * rng.normal()

    Cluster(coordinator_for(store, study, slots=4), score).run()
    reached: dict[str, list[list[float]]] = defaultdict(list)
    for search in store.searches(study.id):
        runs = [run for run in store.runs(study.id) if run.search_id == search.id and run.stage is Stage.CONFIRM]
        reached[study.definition.planned_search(search.label).of].append([run.value or 0.0 for run in runs])
    samples = {
        label: Sample(values=dict(enumerate(of[0] if searches == 1 else [float(np.mean(one)) for one in of])))
        for label, of in reached.items()
    }
    (pair,) = compare(samples, Rules(direction=Direction.MAXIMIZE, unit="searches" if searches > 1 else "seeds"))
    return pair.better


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_one_search_each_calls_the_luckier_one_better() -> None:
    """Rightly: those settings are better. It says nothing of the optimizer."""
    wrong = sum(better(number, searches=1, sampler="random") is not None for number in range(N_STUDIES))
    assert wrong > N_STUDIES / 2


@pytest.mark.parametrize("sampler", ["random", "qmc"])
def test_four_searches_each_are_rarely_wrong(sampler: str) -> None:
    """At a level of 5 %, three of 60 studies are expected to be wrong; seven or more are in 3 % of cases."""
    wrong = sum(better(number, searches=4, sampler=sampler) is not None for number in range(N_STUDIES))
    assert wrong < 7


def test_six_searches_each_show_a_difference() -> None:
    found = [better(number, searches=6, sampler="qmc", gain=0.3) for number in range(20)]
    assert set(found) <= {"b", None}
    assert found.count("b") > 14
