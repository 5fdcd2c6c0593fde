"""What sets optimizers apart, against numbers worked by hand: significance, divergence, time to target."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from sqlalchemy import insert

from admeta.client import terminal
from admeta.client.terminal.tables import comparisons
from search.definition import StudyDefinition
from search.records import Point, RunOutcome
from search.states import FailureKind, RunState, SignificanceTest, Stage, StudyState
from service.dashboard.study_pages import verdicts
from service.database import SqlStore
from service.database.models import Run
from service.database.queries import Axis, RunChoice, best, comparison, detectable, get_study_view, study_curves
from service.database.studies import create_study
from tasks.engine.protocol import Cost
from tests.service.database.fill import complete, curve, definition, leased, run

DIVERGED = RunOutcome(state=RunState.FAIL, failure=FailureKind.DIVERGED, error="diverged at step 3")


def confirmed(store: SqlStore, *, budget: dict[str, object] | None = None) -> str:
    """Two optimizers, each one trial confirmed with three seeds; sgdm also has a trial that diverged."""
    changes = {} if budget is None else {"budget": budget}
    lease, (admetar, sgdm) = leased(store, definition("pair", **changes))
    for search, values in ((admetar, (0.97, 0.98, 0.99)), (sgdm, (0.91, 0.92, 0.93))):
        run(store, lease, search, 0, complete(values[0]), points=curve(0.5, values[0]))
        for seed, value in enumerate(values):
            points = curve(0.5, 0.9, value, train_s=2.0)
            run(store, lease, search, 0, complete(value), stage=Stage.CONFIRM, seed=seed, points=points)
    run(store, lease, sgdm, 1, DIVERGED)
    return lease.study_id


def test_pairs_by_welch(store: SqlStore) -> None:
    """Both variances are 1e-4, so t = 0.06 / sqrt(2e-4 / 3) = 7.348 with 4 degrees of freedom: p = 0.00183."""
    view = comparison(store.engine, confirmed(store), test=SignificanceTest.WELCH)
    (pair,) = view.pairs
    assert (pair.a, pair.b, pair.test, pair.better) == ("admetar", "sgdm", "welch", "admetar")
    assert pair.difference == pytest.approx(0.06)
    assert pair.p_value == pytest.approx(0.00183, abs=5e-5)
    assert pair.p_adjusted == pair.p_value  # one pair: nothing to correct for


def test_verdicts_are_told_in_words(store: SqlStore) -> None:
    (pair,) = comparison(store.engine, confirmed(store)).pairs
    assert (pair.test, pair.verdict, pair.better) == ("moderated", "better", "admetar")
    assert pair.low is not None
    assert 0 < pair.low < 0.06
    assert pair.sentence.startswith("admetar is better than sgdm by 0.06 (95% interval")


def test_the_spread_between_seeds_of_earlier_studies_says_what_the_next_can_show(store: SqlStore) -> None:
    """Both variances are 1e-4; the median of χ² with 2 degrees of freedom is 2 ln 2."""
    before = detectable(store.engine, definition("next"))
    assert before is not None
    assert before.std is None
    confirmed(store)
    found = detectable(store.engine, definition("next"))
    assert found is not None
    assert found.std == pytest.approx((1e-4 / math.log(2)) ** 0.5)
    assert found.difference == pytest.approx(found.std * (before.difference or 0))
    assert "an earlier study of this recipe" in found.sentence


def test_curves_of_runs_whose_epochs_took_no_time_are_shown(store: SqlStore) -> None:
    """A function of one's own may take less than the clock tells, and count no steps."""
    lease, (search, _) = leased(store, definition("quick"))
    run(store, lease, search, 0, complete(0.9), points=curve(0.5, 0.9, train_s=0.0))
    study, view = get_study_view(store.engine, "quick"), comparison(store.engine, lease.study_id)
    found = study_curves(store.engine, study, view, runs=RunChoice.ALL, axis=Axis.SECONDS, metric=None)
    assert (found.x, found.series[0].median) == ([0.0], [0.9])


def test_what_the_next_can_show_is_told_by_studies_of_the_data_that_it_names(store: SqlStore) -> None:
    study = confirmed(store)
    lease = store.acquire_lease(study, owner="driver", ttl_s=60)
    assert lease is not None
    store.set_data_fingerprint(lease, "a" * 64)
    found = detectable(store.engine, definition("next"))
    assert found is not None
    assert found.std is not None


def test_epochs_and_gpu_seconds_of_the_search_stage_stand_beside_the_trials(
    store: SqlStore, capsys: pytest.CaptureFixture[str]
) -> None:
    lease, (admetar, _) = leased(store, definition("costs"))
    points = [Point(epoch=n, step=n, value=0.5, metrics={}, cost=Cost(train_s=2.0, gpu_s=1.5)) for n in (1, 2)]
    for number in range(2):
        run(store, lease, admetar, number, complete(0.9), points=points)
    run(store, lease, admetar, 0, complete(0.9), stage=Stage.CONFIRM, seed=0, points=points)
    first, second = comparison(store.engine, lease.study_id).rows
    assert (first.n_trials, first.n_epochs, first.search_gpu_s, first.gpu_s) == (2, 4, 6.0, 9.0)
    assert (second.n_epochs, second.search_gpu_s) == (0, 0.0)
    terminal.console().print(comparisons.optimizers(comparison(store.engine, lease.study_id)))
    assert "4, 0:06 of GPU" in capsys.readouterr().out


def test_an_optimizer_with_failed_confirm_runs_ranks_behind_and_is_not_better(store: SqlStore) -> None:
    lease, (admetar, sgdm) = leased(store, definition("failing"))
    for search, value in ((admetar, 0.97), (sgdm, 0.90)):
        run(store, lease, search, 0, complete(value))
        for seed in range(6):
            failed = search is admetar and seed % 2
            outcome = DIVERGED if failed else complete(value + 0.001 * seed)
            run(store, lease, search, 0, outcome, stage=Stage.CONFIRM, seed=seed)
    view = comparison(store.engine, lease.study_id)
    assert [(row.label, row.rank) for row in view.rows] == [("sgdm", 1), ("admetar", 2)]
    (pair,) = view.pairs
    assert (pair.verdict, pair.better) == ("undecided", None)
    assert "3 of 6 of admetar" in pair.sentence
    found = best(store.engine, task="digits", optimizer="admetar")
    assert found is not None
    assert found.evidence == "3 of 6 confirm runs failed"


def test_pairs_by_wilcoxon_say_what_three_seeds_cannot_show(store: SqlStore) -> None:
    view = comparison(store.engine, confirmed(store), test=SignificanceTest.WILCOXON)
    (pair,) = view.pairs
    assert pair.p_value == pytest.approx(0.25)
    assert pair.better is None
    assert pair.note is not None
    assert "0.25" in pair.note


def test_divergence_counts_trials_of_the_search_stage(store: SqlStore) -> None:
    rows = {row.label: row for row in comparison(store.engine, confirmed(store)).rows}
    assert (rows["sgdm"].divergence.count, rows["sgdm"].divergence.n) == (1, 2)
    assert (rows["admetar"].divergence.count, rows["admetar"].divergence.rate) == (0, 0.0)


def test_time_to_the_studys_target(store: SqlStore) -> None:
    """0.975 is met by two of admetar's three confirm runs at epoch 3 (30 steps, 6 s) and by none of sgdm's."""
    study = confirmed(store, budget={"trials_per_optimizer": 4, "target": 0.975})
    rows = {row.label: row for row in comparison(store.engine, study).rows}
    target = rows["admetar"].target
    assert target is not None
    assert (target.target, target.n, target.n_reached) == (0.975, 3, 2)
    assert target.steps == [None, 30.0, 30.0]
    assert (target.median_steps, target.median_train_s) == (30.0, 6.0)
    missed = rows["sgdm"].target
    assert missed is not None
    assert (missed.n_reached, missed.median_steps, missed.steps) == (0, None, [None, None, None])


def test_the_tasks_target_serves_where_the_study_states_none(store: SqlStore) -> None:
    row = comparison(store.engine, confirmed(store)).rows[0]
    assert row.target is not None
    assert row.target.target == 0.97  # digits'


def test_nothing_confirmed_nothing_compared(store: SqlStore) -> None:
    lease, (admetar, sgdm) = leased(store, definition("early"))
    run(store, lease, admetar, 0, complete(0.9))
    run(store, lease, sgdm, 0, complete(0.8))
    assert comparison(store.engine, lease.study_id).pairs == []


def test_a_study_that_reaches_past_the_stability_cliff_is_warned(store: SqlStore) -> None:
    space = {"lr": {"type": "float", "low": 0.1, "high": 5.0}, "beta": {"type": "float", "low": 0.1, "high": 0.6}}
    past = definition("cliff", optimizers=[{"name": "admetas", "space": space}])
    view, _ = create_study(store.engine, past)
    assert any("admetas" in warning for warning in view.warnings)
    assert get_study_view(store.engine, "cliff").warnings == view.warnings


def test_a_definition_stored_before_a_field_existed_is_still_the_same(store: SqlStore) -> None:
    from sqlalchemy import update

    from service.database.engine import writing
    from service.database.models import Study

    view, _ = create_study(store.engine, definition("old"))
    older = {key: value for key, value in definition("old").to_json().items() if key != "warm_start"}
    with writing(store.engine) as session:
        session.execute(update(Study).values(definition=older, definition_sha256="of-another-version"))
    again, created = create_study(store.engine, definition("old"))
    assert (again.id, created) == (view.id, False)


def test_repeated_searches_are_compared_by_what_they_reached(store: SqlStore) -> None:
    """Four searches each; a search with a failed confirm run is a failed one, and seeds alone decide nothing."""
    lease, searches = leased(store, definition("repeated", searches=4))
    assert [one.label for one in searches[:5]] == ["admetar", "admetar.2", "admetar.3", "admetar.4", "sgdm"]
    reached = {"admetar": (0.9, 0.92, 0.94, 0.96), "sgdm": (0.6, 0.62, 0.64, None)}
    for i, search in enumerate(searches):
        value = reached["admetar" if i < 4 else "sgdm"][i % 4]
        run(store, lease, search, 0, complete(value or 0.66))
        for seed in range(3):
            failed = value is None and seed == 1
            outcome = DIVERGED if failed else complete((value or 0.66) + 0.001 * (seed - 1))
            run(store, lease, search, 0, outcome, stage=Stage.CONFIRM, seed=seed)
    view = comparison(store.engine, lease.study_id)
    assert len(view.rows) == 8
    assert {(row.label, row.listed_as, row.repeat) for row in view.rows} >= {("sgdm.3", "sgdm", 2)}
    (pair,) = view.pairs
    assert (pair.a, pair.b, pair.better) == ("admetar", "sgdm", "admetar")
    assert view.over_searches["admetar"].mean == pytest.approx(0.93)
    first, second = view.optimizers
    assert (first.label, first.rank, first.validation) == ("admetar", 1, view.over_searches["admetar"])
    assert (second.label, second.rank, second.validation.n, second.validation.n_failed) == ("sgdm", 2, 3, 1)
    assert (first.n_trials, first.n_complete, first.trial) == (4, 4, None)
    assert first.expected_best[0] == pytest.approx(0.93)  # of all trials: the mean of one drawn
    assert len(first.expected_best) == 4
    assert (view.over_searches["admetar"].n, view.over_searches["sgdm"].n_failed) == (4, 1)
    assert pair.difference == pytest.approx(0.93 - 0.62)


def at_the_edge(store: SqlStore, *, name: str = "edge") -> str:
    """A study of which sgdm's best lr lies at the upper end of its space, [0.005, 0.5], and admetar's does not."""
    lease, (admetar, sgdm) = leased(store, definition(name, budget={"trials_per_optimizer": 20}))
    for i in range(20):
        lr = 0.005 * 100 ** (i / 19)
        run(store, lease, sgdm, i, complete(0.5 + 0.02 * i), params={"lr": lr})
        params = {"lr": 3e-3 * 33.3 ** (i / 19), "lambd": 0.1}
        run(store, lease, admetar, i, complete(0.9 - 0.001 * (i - 10) ** 2), params=params)
    for search, best_trial in ((admetar, 10), (sgdm, 19)):
        for seed in range(3):
            outcome = complete(0.9 + 0.001 * seed)
            run(store, lease, search, best_trial, outcome, stage=Stage.CONFIRM, seed=seed, params={"lr": 0.5})
    return lease.study_id


def test_a_best_value_at_the_end_of_its_space_is_told_with_a_study_that_searches_further(store: SqlStore) -> None:
    view = comparison(store.engine, at_the_edge(store))
    (edge,) = view.edges
    assert (edge.label, edge.parameter, edge.end, edge.bound, edge.wider) == ("sgdm", "lr", "high", 0.5, 5.0)
    assert edge.change == "optimizers.1.space.lr.high=5.0"
    wider = StudyDefinition.model_validate(view.wider)
    assert (wider.name, wider.optimizers[1].space["lr"].end_points()) == ("edge-wider", [0.005, 5.0])
    is_new = create_study(store.engine, wider)[1]
    assert is_new


def test_no_edge_is_told_while_the_search_goes_on(store: SqlStore) -> None:
    lease, (_, sgdm) = leased(store, definition("early"))
    for i in range(20):
        run(store, lease, sgdm, i, complete(0.5 + 0.02 * i), params={"lr": 0.005 * 100 ** (i / 19)})
    view = comparison(store.engine, lease.study_id)
    assert (view.edges, view.wider) == ([], None)


def test_a_baseline_is_a_row_and_is_compared_with_its_optimizer_alone(store: SqlStore) -> None:
    def filled(name: str, **changes: object) -> str:
        lease, searches = leased(store, definition(name, **changes))
        reached = {"admetar": 0.97, "sgdm": 0.9, "admetar.defaults": 0.8, "sgdm.defaults": 0.9}
        for search in searches:
            params = {} if search.label.endswith(".defaults") else {"lr": 0.1}
            run(store, lease, search, 0, complete(reached[search.label]), params=params)
            for seed in range(3):
                value = complete(reached[search.label] + 0.002 * ((seed + len(search.label)) % 3))
                run(store, lease, search, 0, value, stage=Stage.CONFIRM, seed=seed, params=params)
        return lease.study_id

    alone = comparison(store.engine, filled("alone"))
    view = comparison(store.engine, filled("beside", baseline="defaults"))
    assert [(pair.a, pair.b) for pair in view.pairs] == [
        ("admetar", "sgdm"), ("admetar", "admetar.defaults"), ("sgdm", "sgdm.defaults"),
    ]  # fmt: skip
    assert view.pairs[0] == alone.pairs[0]  # a baseline costs the other verdicts nothing
    assert view.pairs[1].sentence.startswith("admetar is better than admetar.defaults by 0.17")
    assert view.pairs[2].verdict == "undecided"
    rows = {row.label: row for row in view.rows}
    assert (rows["admetar.defaults"].baseline_of, rows["admetar.defaults"].listed_as) == ("admetar", "admetar.defaults")
    assert rows["admetar.defaults"].settings is not None
    assert rows["admetar.defaults"].settings["lr"] == 0.01
    assert (rows["admetar.defaults"].expected_best, rows["admetar"].baseline_of) == ([], None)
    assert [row.rank for row in view.rows] == sorted(row.rank or 0 for row in view.rows)
    shown = verdicts(view)
    assert shown["sgdm"].startswith("behind")
    assert shown["admetar.defaults"].startswith("behind admetar, p = ")


def test_the_best_of_n_counts_diverged_and_pruned_trials(store: SqlStore) -> None:
    """Eight of ten trials diverged: what a trial is expected to reach is not above a stable rival's."""
    lease, (admetar, sgdm) = leased(store, definition("unstable", budget={"trials_per_optimizer": 10}))
    for i in range(10):
        run(store, lease, admetar, i, DIVERGED if i >= 2 else complete(0.95))
        stable = RunOutcome(state=RunState.PRUNED, value=0.8) if i % 2 else complete(0.9)
        run(store, lease, sgdm, i, stable)
    unstable, rival = (
        next(row for row in comparison(store.engine, lease.study_id).rows if row.label == label)
        for label in ("admetar", "sgdm")
    )
    assert len(unstable.expected_best) == len(rival.expected_best) == 10
    assert unstable.expected_best[0] == pytest.approx((2 * 0.95 + 8 * 0.8) / 10)  # diverged: the worst of the study
    assert unstable.expected_best[0] < rival.expected_best[0] == pytest.approx(0.85)
    assert unstable.best_of_n.median[:2] == [None, None]
    assert unstable.best_of_n.median[-1] == 0.95
    assert rival.best_of_n.median[0] == 0.8
    assert unstable.best_of_n.low[0] is None


def test_time_to_target_has_a_band(store: SqlStore) -> None:
    study = confirmed(store, budget={"trials_per_optimizer": 4, "target": 0.975})
    rows = {row.label: row for row in comparison(store.engine, study).rows}
    target, missed = rows["admetar"].target, rows["sgdm"].target
    assert target is not None
    assert missed is not None
    assert (target.reached.times, target.reached.share) == ([6.0], [pytest.approx(2 / 3)])
    assert 0 < target.reached.low[0] < 2 / 3 < target.reached.high[0] < 1
    assert (missed.reached.times, missed.reached.share) == ([], [])
    assert 0.5 < missed.reached.before < 1


def test_repeated_searches_beside_their_baseline_are_told_no_number_of_searches(store: SqlStore) -> None:
    lease, searches = leased(store, definition("both", searches=3, baseline=["admetar"]))
    for k, search in enumerate(searches):
        value = 0.8 if search.label.endswith(".defaults") else 0.9 + 0.02 * (k % 3)
        run(store, lease, search, 0, complete(value), params={})
        for seed in range(3):
            run(store, lease, search, 0, complete(value), stage=Stage.CONFIRM, seed=seed, params={})
    view = comparison(store.engine, lease.study_id)
    assert [row.label for row in view.optimizers] == ["admetar", "sgdm", "admetar.defaults"]
    assert (view.optimizers[2].baseline_of, view.optimizers[2].expected_best) == ("admetar", [])
    pair = next(pair for pair in view.pairs if pair.b == "admetar.defaults")
    assert pair.more is None
    assert pair.sentence.endswith(". The defaults are one trial beside the searches")


def test_repeated_searches_without_confirmation_are_ranked_by_their_best(store: SqlStore) -> None:
    """None of them failed, and there are no verdicts: the best of a search was chosen by the value itself."""
    lease, searches = leased(store, definition("unconfirmed", searches=2, confirm={"top_k": 0}))
    for search, value in zip(searches, (0.6, 0.7, 0.8, 0.9), strict=True):
        run(store, lease, search, 0, complete(value))
    store.set_study_state(lease, StudyState.COMPLETED)
    view = comparison(store.engine, lease.study_id)
    assert [(row.label, row.rank, row.validation.n, row.validation.n_failed) for row in view.optimizers] == [
        ("sgdm", 1, 2, 0),
        ("admetar", 2, 2, 0),
    ]
    assert view.optimizers[0].validation.mean == pytest.approx(0.85)
    assert view.pairs == []
    assert [one[:47] for one in view.remarks] == ["Nothing is confirmed (confirm.top_k is 0): each"]


def test_a_thousand_searches_are_compared(store: SqlStore) -> None:
    """More than SQLite takes conditions in a statement."""
    optimizers = [{"name": "sgdm", "label": f"o{i}"} for i in range(11)]
    lease, searches = leased(store, definition("many", optimizers=optimizers, searches=100))
    values = {"trial_number": 0, "state": RunState.COMPLETE, "created_at": datetime.now(UTC), "params": {}, "epoch": 1}
    rows = [
        {**values, "search_id": search.id, "stage": stage, "seed": seed, "value": 0.5}
        for search in searches
        for stage, seed in ((Stage.SEARCH, 100), (Stage.CONFIRM, 0))
    ]
    with store.engine.begin() as connection:
        connection.execute(insert(Run), rows)
    view = comparison(store.engine, lease.study_id)
    assert {row.trial for row in view.rows} == {0}
    study = get_study_view(store.engine, "many")
    found = study_curves(store.engine, study, view, runs=RunChoice.BEST, axis=Axis.EPOCH, metric=None)
    assert len(found.series) == 1100


def test_what_the_next_can_show_is_told_by_studies_of_its_own_code(store: SqlStore) -> None:
    """Another function was trained last; its fingerprint is not that of this one."""
    tasks = {name: {"name": "python", "run": f"code.{name}:train", "epochs": 2} for name in ("first", "second")}
    objective = {"metric": "val_loss", "direction": "minimize"}
    for name, task in tasks.items():
        lease, (search, _) = leased(store, definition(name, task=task, objective=objective))
        store.set_data_fingerprint(lease, name)
        run(store, lease, search, 0, complete(0.9))
        for seed in range(3):
            run(store, lease, search, 0, complete(0.9 + 0.01 * seed), stage=Stage.CONFIRM, seed=seed)
    for task in tasks.values():
        found = detectable(store.engine, definition("next", task=task, objective=objective))
        assert found is not None
        assert found.std is not None
