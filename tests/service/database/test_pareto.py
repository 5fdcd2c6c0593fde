"""Pareto fronts from SQL: as by brute force, of the training that came to its end, and of any study."""

from __future__ import annotations

import random
from collections.abc import Sequence

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import Engine

from admeta.client.models import BestView
from search.errors import SearchError, StudyNotFoundError
from search.records import Lease, Point, RunOutcome, SearchRecord
from search.states import Direction, FailureKind, RunState, Stage
from service.database import SqlStore
from service.database.queries import best, comparison, pareto, with_front
from tasks.engine.protocol import Cost
from tests.search.test_objectives import dominates
from tests.service.database.fill import complete, curve, definition, leased, run

UP, DOWN = Direction.MAXIMIZE, Direction.MINIMIZE


def points(value: float, *seconds: float, memory: int = 1, loss: float = 1.0) -> list[Point]:
    """A curve with these seconds of each epoch."""
    return [
        Point(
            epoch=epoch,
            step=epoch,
            value=value,
            metrics={"val_accuracy": value, "val_loss": loss},
            cost=Cost(train_s=s, peak_memory_bytes=memory),
        )
        for epoch, s in enumerate(seconds, 1)
    ]


def trial(
    store: SqlStore, lease: Lease, search: SearchRecord, number: int, value: float, curve: Sequence[Point]
) -> None:
    run(store, lease, search, number, complete(value), points=curve)


def test_the_fronts_are_those_of_brute_force(store: SqlStore, engine: Engine) -> None:
    lease, searches = leased(store, definition(objectives=["train_s", "peak_memory_bytes"]))
    source, directions = random.Random(0), (UP, DOWN, DOWN)
    values: dict[tuple[str, int], list[float]] = {}
    for search in searches:
        for number in range(12):
            value, seconds, memory = source.randint(1, 8) / 10, source.randint(1, 8), source.randint(1, 8)
            trial(store, lease, search, number, value, points(value, *[float(seconds)] * 3, memory=memory))
            values[search.label, number] = [value, 3.0 * seconds, memory]
    view = pareto(engine, "digits")
    assert view.searched
    (remark,) = comparison(engine, "digits").remarks
    assert remark.startswith("Trials were searched for train_s and peak_memory_bytes as well")
    assert [(one.metric, one.direction) for one in view.objectives] == [
        ("val_accuracy", "maximize"), ("train_s", "minimize"), ("peak_memory_bytes", "minimize"),
    ]  # fmt: skip
    columns = list(zip(*values.values(), strict=True))
    assert view.ideal == [max(columns[0]), min(columns[1]), min(columns[2])]
    assert view.reference == [min(columns[0]), max(columns[1]), max(columns[2])]
    for of in view.fronts:
        own = {number: one for (label, number), one in values.items() if label == of.label}
        assert {one.trial: one.values for one in of.trials} == own
        for one in of.trials:
            assert one.on_front is not any(dominates(other, one.values, directions) for other in own.values())
            assert one.leads is not any(dominates(other, one.values, directions) for other in values.values())
            assert (one.settings is not None) is one.on_front
        accuracies = [one.values[0] for one in of.trials]
        assert accuracies == sorted(accuracies, reverse=True)
    shares = [of.hypervolume or 0.0 for of in view.fronts]
    assert 0 < max(shares) <= (view.hypervolume or 0.0) < 1


def test_an_ordinary_study_has_a_front_too(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = leased(store, definition())
    trial(store, lease, admetar, 0, 0.9, points(0.9, 40.0, 3.0, 3.0, 3.0, memory=5))  # the first epoch compiles
    trial(store, lease, admetar, 1, 0.8, points(0.8, 2.0, 2.0, 2.0, 2.0, memory=7))
    view = pareto(engine, "digits")
    assert not view.searched
    assert [one.metric for one in view.objectives] == ["val_accuracy", "train_s"]
    assert [(one.trial, one.values, one.on_front) for one in view.fronts[0].trials] == [
        (0, [0.9, 12.0], True), (1, [0.8, 8.0], True),
    ]  # fmt: skip
    of_memory = pareto(engine, "digits", objectives=["peak_memory_bytes"])
    assert [(one.trial, one.on_front) for one in of_memory.fronts[0].trials] == [(0, True), (1, False)]
    assert (of_memory.ideal, of_memory.reference) == ([0.9, 5.0], [0.8, 7.0])
    assert of_memory.fronts[0].hypervolume == 1.0  # the first is the best of both
    assert of_memory.fronts[1].trials == []
    assert of_memory.fronts[1].hypervolume is None
    assert pareto(engine, "digits", objectives=["val_loss"]).hypervolume is None  # all are equal in it


def test_epochs_that_were_trained_again_count_once(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = leased(store, definition())
    record = run(store, lease, admetar, 0, None, points=points(0.5, 5.0, 5.0))
    store.interrupt_attempt(lease, record.id, reason="its node left")
    store.start_attempt(lease, record.id)
    store.add_points(lease, record.id, points(0.9, 5.0, 6.0, 7.0)[1:])
    store.finish_run(lease, record.id, complete(0.9))
    assert store.runs(record.search_id and lease.study_id)[0].cost.train_s == 23.0
    assert pareto(engine, "digits").fronts[0].trials[0].values == [0.9, 18.0]


def test_what_is_no_whole_training_is_left_out(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = leased(store, definition())
    trial(store, lease, admetar, 0, 0.9, points(0.9, 1.0))
    run(store, lease, admetar, 1, RunOutcome(state=RunState.PRUNED, value=0.95), points=points(0.95, 0.1))
    run(
        store, lease, admetar, 2, RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED), points=points(1.0, 0.1)
    )
    run(store, lease, admetar, 0, complete(0.99), stage=Stage.CONFIRM, seed=0, points=points(0.99, 0.1))
    duplicate = store.create_run(
        lease, admetar.id, trial_number=3, stage=Stage.SEARCH, seed=100, params={"lr": 0.1}
    )  # takes over a curve, without an attempt
    store.finish_run(lease, duplicate.id, complete(0.9), points=points(0.9, 1.0))
    assert [one.trial for one in pareto(engine, "digits").fronts[0].trials] == [0]


def test_repeated_searches_and_baselines(store: SqlStore, engine: Engine) -> None:
    asked = definition(optimizers=["admetar"], searches=2, baseline="defaults", confirm={"top_k": 0})
    lease, searches = leased(store, asked)
    for i, search in enumerate(searches):
        trial(store, lease, search, 0, 0.5 + 0.1 * i, points(0.5, 1.0 + i))
    view = pareto(engine, "digits")
    assert [(of.label, [one.label for one in of.trials]) for of in view.fronts] == [
        ("admetar", ["admetar.2", "admetar"]), ("admetar.defaults", ["admetar.defaults"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("objectives", "rule"),
    [
        (["train"], "did you mean 'train_s'?"),
        (["val_accuracy"], "the study's metric, is always one"),
        (["train_s", "train_s"], "given twice"),
        (["\udcff"], "no metric of task 'digits'"),
    ],
)
def test_an_objective_that_is_none(store: SqlStore, engine: Engine, objectives: list[str], rule: str) -> None:
    leased(store, definition())
    with pytest.raises(SearchError, match=rule.replace("?", r"\?")):
        pareto(engine, "digits", objectives=objectives)


def test_no_trials_and_no_study(store: SqlStore, engine: Engine) -> None:
    leased(store, definition())
    view = pareto(engine, "digits")
    assert (view.ideal, view.reference, view.hypervolume) == ([], [], None)
    assert [of.trials for of in view.fronts] == [[], []]
    with pytest.raises(StudyNotFoundError):
        pareto(engine, "other")


def test_best_has_the_front_of_its_search(store: SqlStore, engine: Engine) -> None:
    lease, (admetar, _) = leased(store, definition(objectives=["train_s"]))
    trial(store, lease, admetar, 0, 0.9, points(0.9, 3.0))
    trial(store, lease, admetar, 1, 0.8, points(0.8, 2.0))
    trial(store, lease, admetar, 2, 0.7, points(0.7, 2.5))
    found = best(engine, task="digits", optimizer="admetar")
    assert isinstance(found, BestView)
    assert found.front == []
    shown = with_front(engine, found)
    assert [(one.trial, one.values) for one in shown.front] == [(0, [0.9, 3.0]), (1, [0.8, 2.0])]
    assert [one.metric for one in shown.objectives] == ["val_accuracy", "train_s"]
    lease, (other, _) = leased(store, definition("ordinary", task={"name": "digits", "epochs": 99}))
    run(store, lease, other, 0, complete(0.95), points=curve(0.95))
    found = best(engine, task="digits", optimizer="admetar")
    assert found is not None
    assert with_front(engine, found) is found


def test_optuna_keeps_all_values_in_our_storage(store: SqlStore) -> None:
    """Through the statements that end a trial, and again by another reader of the tables."""
    storage = store.optuna_storage()
    study = optuna.create_study(study_name="s/a", storage=storage, directions=["maximize", "minimize"])
    for values in ([0.9, 3.0], [0.8, 2.0], [0.7, 2.5]):
        made = study.ask()
        storage.set_trial_state_values(made._trial_id, TrialState.COMPLETE, values)
    found = optuna.load_study(study_name="s/a", storage=SqlStore(store.engine).optuna_storage())
    assert [one.values for one in found.trials] == [[0.9, 3.0], [0.8, 2.0], [0.7, 2.5]]
    assert [one.number for one in found.best_trials] == [0, 1]
