"""Studies side by side: which of them are compared, by what, and how their definitions differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from search.analysis import Rules, Sample, compare
from search.errors import StudyNotFoundError
from search.records import RunOutcome
from search.states import Direction, FailureKind, RunState, Stage
from service.database import SqlStore
from service.database.queries import chosen, compare_studies, several
from service.database.queries.several import differences
from tests.service.database.fill import complete, definition, leased, run

HIGH, LOW = (0.97, 0.98, 0.99), (0.91, 0.92, 0.93)
DIVERGED = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="diverged at step 3")


def confirmed(store: SqlStore, name: str, admetar: Sequence[float], sgdm: Sequence[float], **changes: Any) -> str:
    """Two optimizers, the best trial of each confirmed with three seeds."""
    lease, searches = leased(store, definition(name, **changes))
    for search, values in zip(searches, (admetar, sgdm), strict=True):
        run(store, lease, search, 0, complete(values[0]))
        for seed, value in enumerate(values):
            run(store, lease, search, 0, complete(value, test_accuracy=value), stage=Stage.CONFIRM, seed=seed)
    return lease.study_id


def test_two_studies_of_one_recipe(store: SqlStore) -> None:
    """The family is every two of the four searches; those within a study are not told again."""
    first = confirmed(store, "first", HIGH, LOW)
    confirmed(store, "second", LOW, LOW, budget={"trials_per_optimizer": 9})
    view = compare_studies(store.engine, [first, "second"])
    assert [(study.name, study.best) for study in view.studies] == [("first", "admetar"), ("second", "admetar")]
    assert view.studies[0].rows[0].validation.mean == pytest.approx(0.98)
    assert view.studies[0].rows[0].test.mean == pytest.approx(0.98)
    assert view.no_verdicts is None
    assert [(pair.a, pair.b) for pair in view.pairs] == [
        ("first/admetar", "second/admetar"),
        ("first/sgdm", "second/sgdm"),
    ]
    best, same = view.pairs
    assert (best.verdict, best.better, same.verdict) == ("better", "first/admetar", "undecided")
    assert best.sentence.startswith("first/admetar is better than second/admetar by 0.06 (95% interval")
    samples = {
        name: Sample(values=dict(enumerate(values))) for name, values in zip("abcd", (HIGH, LOW, LOW, LOW), strict=True)
    }
    wanted = {(p.a, p.b): p for p in compare(samples, Rules(direction=Direction.MAXIMIZE))}["a", "c"]
    assert best.p_adjusted == pytest.approx(wanted.p_adjusted)
    assert [(one.field, one.values) for one in view.differences] == [("budget.trials_per_optimizer", [4, 9])]


def test_the_best_of_unlike_optimizers_are_compared(store: SqlStore) -> None:
    confirmed(store, "first", HIGH, LOW)
    confirmed(store, "second", (0.5, 0.51, 0.52), LOW)
    pairs = compare_studies(store.engine, ["first", "second"]).pairs
    assert (pairs[0].a, pairs[0].b, pairs[0].better) == ("first/admetar", "second/sgdm", "first/admetar")
    assert len(pairs) == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"task": {"name": "digits", "epochs": 3}},
            "not of one recipe (task with its settings, data and objective): epochs",
        ),
        ({"task": {"name": "digits", "batch_size": 16}}, "not of one recipe"),
        ({"searches": 2}, "repeats its searches"),
        ({"confirm": {"until": "decided"}}, "confirmed until it was decided"),
    ],
)
def test_no_verdicts_where_they_would_mislead(store: SqlStore, changes: dict[str, Any], reason: str) -> None:
    confirmed(store, "first", HIGH, LOW)
    leased(store, definition("other", **changes))
    view = compare_studies(store.engine, ["first", "other"])
    assert view.pairs == []
    assert reason in (view.no_verdicts or "")
    assert any(one.field.startswith(next(iter(changes))) for one in view.differences)


def test_nothing_is_confirmed_yet(store: SqlStore) -> None:
    confirmed(store, "first", HIGH, LOW)
    leased(store, definition("new"))
    view = compare_studies(store.engine, ["first", "new"])
    assert (view.studies[1].best, view.pairs) == (None, [])
    assert "fewer than two of these studies have confirm runs" in (view.no_verdicts or "")


def test_a_study_with_failed_runs_is_not_better_by_the_others(store: SqlStore) -> None:
    first = confirmed(store, "first", LOW, LOW)
    lease, (admetar, _) = leased(store, definition("failing"))
    run(store, lease, admetar, 0, complete(0.99))
    for seed in range(6):
        outcome = DIVERGED if seed % 2 else complete(0.99 + 0.001 * seed)
        run(store, lease, admetar, 0, outcome, stage=Stage.CONFIRM, seed=seed)
    pair = compare_studies(store.engine, [first, "failing"]).pairs[0]
    assert (pair.verdict, pair.better) == ("undecided", None)


def test_the_chosen_trials_of_each_study_are_read_once(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(session: Any, study: Any, searches: Any) -> Any:
        asked.append(study.name)
        return chosen.chosen_trials(session, study, searches)

    monkeypatch.setitem(several.compared.__globals__, "chosen_trials", counted)
    for name in ("one", "two"):
        leased(store, definition(name))
    compare_studies(store.engine, ["one", "two"])
    assert asked == ["one", "two"]


def test_a_study_that_is_not_there(store: SqlStore) -> None:
    confirmed(store, "first", HIGH, LOW)
    with pytest.raises(StudyNotFoundError, match="absent"):
        compare_studies(store.engine, ["first", "absent"])


def test_differences_name_optimizers_by_label() -> None:
    low = {"type": "float", "low": 1e-4, "high": 0.1, "log": True}
    one = {"name": "a", "description": "x", "optimizers": [{"label": "sgdm", "name": "sgdm", "space": {"lr": low}}]}
    changed = {"label": "sgdm", "name": "sgdm", "space": {"lr": {**low, "low": 1e-5}}}
    two = {"name": "b", "optimizers": [{"label": "adamw", "name": "adamw", "space": {}}, changed], "tags": []}
    assert [(found.field, found.values) for found in differences([one, two])] == [
        ("optimizers.sgdm.space.lr", [low, {**low, "low": 1e-5}]),
        ("optimizers.adamw.name", [None, "adamw"]),
        ("optimizers.adamw.space", [None, {}]),
        ("tags", [None, []]),
    ]


def test_too_many_searches_have_no_verdicts(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "MAX_SEARCHES", 3)
    confirmed(store, "first", HIGH, LOW)
    confirmed(store, "second", LOW, LOW)
    view = compare_studies(store.engine, ["first", "second"])
    assert view.pairs == []
    assert "4 confirmed searches together, and verdicts are given for up to 3" in (view.no_verdicts or "")
