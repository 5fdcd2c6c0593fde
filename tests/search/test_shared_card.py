"""`gpus: auto` over a real Ray that was told of a card: Tune places the runs, and what they report raises their number.

There is no card: the runs train on the CPU, in the places of a card.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from search import placement
from search.driver import DriverOptions, drive
from search.states import RunState, StudyState
from tests.local_ray import local_ray
from tests.search.memory_store import MemoryStore
from tests.search.workers import define

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def ray_with_a_card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with local_ray(tmp_path_factory.mktemp("home"), num_cpus=4, num_gpus=1):
        yield


@pytest.mark.usefixtures("ray_with_a_card")
def test_the_number_of_runs_on_a_card_is_found_as_they_train(tmp_path: Path) -> None:
    """The first study begins with two, and with four after the first report; the second with what the first found."""
    store = MemoryStore()
    for name in ("first", "second"):
        definition = define(
            name=name,
            task={"name": "digits", "model": "linear", "epochs": 40},
            optimizers=[{"name": "sgdm"}],
            budget={"trials_per_optimizer": 6},
            confirm={"top_k": 0},
            resources={"cpus": 1, "gpus": "auto"},
            checkpoint_every_s=3600,
        )
        study = store.add_study(definition)
        known = store.card_facts(placement.task_shape(definition))
        drive(study.id, store=store, options=DriverOptions(owner="test", storage=str(tmp_path)))
        assert store.get_study(study.id).state is StudyState.COMPLETED
        runs = store.runs(study.id)
        assert [run.state for run in runs] == [RunState.COMPLETE] * 6
        environments = [start.environment for run in runs for start in store.starts[run.id]]
        n_first = next(iter(known.values())).n_at_once if known else 2
        assert environments[0]["placement"].startswith(f"{n_first} trial")
        assert environments[0]["gpus"] == 1 / n_first
        assert store.sizes[study.id].gpus in (1 / n_first, 1 / 4)  # what other studies' drivers count by
        if not known:
            assert environments[2]["placement"].startswith("4 trials a card")
