"""Every sampler through ask and tell with the real loop: reproducible, resumable, never the same place twice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from pydantic import TypeAdapter

from search import optuna_samplers, samplers
from search.assignment import Assignment
from search.records import RunRecord, StudyRecord
from search.space import Space
from search.states import RunState, Stage
from tasks.engine.seeds import derive_seed
from tests.search.memory_store import MemoryStore
from tests.search.workers import Cluster, coordinator_for, define

CONTINUOUS = {
    "lr": {"type": "float", "low": 1e-3, "high": 1.0, "log": True},
    "lambd": {"type": "float", "low": 0.02, "high": 0.4},
}
MIXED = {
    **CONTINUOUS,
    "k": {"type": "int", "low": 2, "high": 12},
    "dema": {"type": "categorical", "choices": ["full", "off"]},
}
BETAS = [[0.9, 0.999], [0.95, 0.999], [0.9, 0.99]]
LISTS = {"lr": CONTINUOUS["lr"], "betas": {"type": "categorical", "choices": BETAS}}
CONDITIONAL = {
    "lr": CONTINUOUS["lr"],
    "dema": {"type": "categorical", "choices": ["full", "off"]},
    "lambd": {**CONTINUOUS["lambd"], "when": {"dema": "full"}},
}
FINITE = {
    "lr": {"type": "categorical", "choices": [0.1, 0.05, 0.01]},
    "lambd": {"type": "categorical", "choices": [0.05, 0.1, 0.2, 0.3]},
}
TPE = {"name": "tpe"}
GP = {"name": "gp", "n_startup_trials": 4}
EVERY_SAMPLER = [
    TPE,
    {"name": "tpe", "multivariate": False},
    GP,
    {"name": "cmaes"},
    {"name": "qmc"},
    {"name": "random"},
]
NAMES = ["tpe", "tpe-univariate", "gp", "cmaes", "qmc", "random"]

Score = Callable[[Assignment, int], float | None]


def distance_to_optimum(assignment: Assignment, epoch: int) -> float:
    """Best at lr = 0.03, λ = 0.1; rises with the epoch."""
    settings = assignment.settings
    return -abs(math.log10(settings["lr"] / 0.03)) - abs(settings.get("lambd", 0.4) - 0.1) - 1 / epoch


def begin(
    sampler: dict[str, Any],
    space: dict[str, Any],
    *,
    n_trials: int = 20,
    storage: optuna.storages.BaseStorage | None = None,
    **changes: Any,
) -> tuple[MemoryStore, StudyRecord]:
    store = MemoryStore()
    if storage is not None:
        store._optuna = storage  # type: ignore[assignment]
    definition = define(
        task={"name": "synthetic", "model": "idle", "epochs": 1},
        optimizers=[{"name": "admetar", "space": space}],
        sampler=sampler,
        budget={"trials_per_optimizer": n_trials},
        confirm={"top_k": 0},
    )
    return store, store.add_study(definition.model_validate({**definition.to_json(), **changes}))


def play(
    store: MemoryStore,
    study: StudyRecord,
    *,
    owner: str = "first",
    slots: int = 1,
    rounds: int | None = None,
    score: Score = distance_to_optimum,
) -> None:
    """Run the study to its end, or until its driver dies after some rounds."""
    cluster = Cluster(coordinator_for(store, study, owner=owner, slots=slots), score)
    for number in cluster.rounds():
        if number == rounds:
            return


def runs_of(store: MemoryStore, study: StudyRecord) -> list[RunRecord]:
    return sorted((r for r in store.runs(study.id) if r.stage is Stage.SEARCH), key=lambda run: run.trial_number)


def tried(store: MemoryStore, study: StudyRecord) -> list[dict[str, Any]]:
    return [dict(run.params) for run in runs_of(store, study)]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture
def open_sqlite(tmp_path: Path) -> Iterator[Callable[[], optuna.storages.BaseStorage]]:
    """Opens the same file anew, as a restarted driver does."""
    opened: list[optuna.storages.RDBStorage] = []

    def open_storage() -> optuna.storages.BaseStorage:
        opened.append(optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/optuna.db"))
        return optuna.storages.get_storage(opened[-1])

    yield open_storage
    for storage in opened:
        storage.remove_session()
        storage.engine.dispose()


def n_trials_for(sampler: dict[str, Any]) -> int:
    return 6 if sampler["name"] == "gp" else 20  # a GP suggestion costs half a second or more


@pytest.mark.parametrize("sampler", EVERY_SAMPLER, ids=NAMES)
@pytest.mark.parametrize("space", [MIXED, CONDITIONAL], ids=["mixed", "conditional"])
def test_a_seed_gives_the_same_configurations_and_another_seed_others(
    sampler: dict[str, Any], space: dict[str, Any]
) -> None:
    def once(seed: int) -> list[dict[str, Any]]:
        store, study = begin({**sampler, "seed": seed}, space, n_trials=n_trials_for(sampler))
        play(store, study)
        return tried(store, study)

    assert once(0) == once(0)
    assert once(0) != once(1)


@pytest.mark.parametrize("sampler", EVERY_SAMPLER, ids=NAMES)
def test_a_restart_changes_nothing_and_repeats_nothing(sampler: dict[str, Any]) -> None:
    n_trials = n_trials_for(sampler)
    whole_store, whole = begin(sampler, CONTINUOUS, n_trials=n_trials)
    play(whole_store, whole)

    store, study = begin(sampler, CONTINUOUS, n_trials=n_trials)
    play(store, study, rounds=3)
    play(store, study, owner="second", rounds=n_trials // 2)
    play(store, study, owner="third")

    assert tried(store, study) == tried(whole_store, whole)
    assert len({json.dumps(params) for params in tried(store, study)}) == n_trials


@pytest.mark.parametrize("sampler", EVERY_SAMPLER, ids=NAMES)
def test_several_at_once_never_get_the_same_configuration(sampler: dict[str, Any]) -> None:
    n_trials = n_trials_for(sampler)
    store, study = begin(sampler, CONTINUOUS, n_trials=n_trials)
    play(store, study, slots=4)
    assert len({json.dumps(params) for params in tried(store, study)}) == n_trials


@pytest.mark.parametrize("sampler", EVERY_SAMPLER, ids=NAMES)
def test_an_optimizer_with_one_parameter(sampler: dict[str, Any]) -> None:
    store, study = begin(sampler, {"lr": CONTINUOUS["lr"]}, n_trials=8)
    play(store, study, slots=2)
    assert all(run.state is RunState.COMPLETE for run in runs_of(store, study))


@pytest.mark.parametrize("sampler", EVERY_SAMPLER, ids=NAMES)
def test_lists_as_choices_survive_a_restart_on_sqlite(
    sampler: dict[str, Any], open_sqlite: Callable[[], optuna.storages.BaseStorage]
) -> None:
    store, study = begin(sampler, LISTS, n_trials=8, storage=open_sqlite())
    play(store, study, rounds=4)
    store._optuna = open_sqlite()  # type: ignore[assignment]
    play(store, study, owner="second")
    drawn = tried(store, study)
    assert len(drawn) == 8
    assert all(params["betas"] in BETAS for params in drawn)
    memory, same = begin(sampler, LISTS, n_trials=8)
    play(memory, same)
    assert drawn == tried(memory, same), "the storage must not change what is proposed"


@pytest.mark.parametrize("sampler", EVERY_SAMPLER, ids=NAMES)
def test_a_conditional_parameter_is_drawn_only_under_its_condition(sampler: dict[str, Any]) -> None:
    store, study = begin(sampler, CONDITIONAL, n_trials=n_trials_for(sampler))
    play(store, study, slots=2)
    drawn = tried(store, study)
    assert {params["dema"] for params in drawn} == {"full", "off"}
    assert all(("lambd" in params) == (params["dema"] == "full") for params in drawn)


@pytest.mark.parametrize("slots", [1, 3])
def test_the_grid_visits_each_once_and_ends(slots: int) -> None:
    store, study = begin(
        {"name": "grid"}, {**FINITE, "k": {"type": "int", "low": 2, "high": 6, "step": 4}}, n_trials=100
    )
    play(store, study, slots=slots, rounds=5)
    play(store, study, slots=slots, owner="second")
    drawn = [json.dumps(params, sort_keys=True) for params in tried(store, study)]
    assert len(drawn) == len(set(drawn)) == 24


def test_a_grid_larger_than_the_budget_stops_at_the_budget() -> None:
    store, study = begin({"name": "grid"}, FINITE, n_trials=7)
    play(store, study)
    assert len({json.dumps(params) for params in tried(store, study)}) == len(tried(store, study)) == 7


def test_the_grid_goes_on_where_a_trial_diverged() -> None:
    store, study = begin({"name": "grid"}, FINITE, n_trials=12)
    play(store, study, score=lambda assignment, epoch: None if assignment.settings["lr"] > 0.05 else 0.5)
    assert len({json.dumps(params) for params in tried(store, study)}) == 12


@pytest.mark.parametrize(("sampler", "slots"), [(TPE, 1), (TPE, 3), ({**GP, "n_startup_trials": 10}, 1)])
def test_a_finite_space_is_exhausted_before_anything_is_proposed_twice(sampler: dict[str, Any], slots: int) -> None:
    store, study = begin(sampler, FINITE, n_trials=12)
    play(store, study, slots=slots)
    assert len({json.dumps(params, sort_keys=True) for params in tried(store, study)}) == 12


def test_twins_are_not_trained_twice() -> None:
    """Random draws from two choices repeat; the repeats take over the first one's curve and result."""
    store, study = begin({"name": "random"}, {"lr": {"type": "categorical", "choices": [0.1, 0.01]}}, n_trials=10)
    cluster = Cluster(coordinator_for(store, study, slots=3), distance_to_optimum)
    cluster.run()
    assert len(cluster.started) == 2
    runs = runs_of(store, study)
    assert len(runs) == 10
    assert len({(run.params["lr"], run.value, run.state) for run in runs}) == 2


@pytest.mark.parametrize("sampler", [TPE, {"name": "cmaes"}], ids=["tpe", "cmaes"])
def test_what_diverged_is_avoided(sampler: dict[str, Any]) -> None:
    """Above lr = 0.1, a third of the space, training diverges. The states stay FAIL; the sampler learns nonetheless.

    Optuna's TPE alone takes that third for unexplored: 99 % of its trials 20 to 39 diverge; here 17 %.
    """

    def score(assignment: Assignment, epoch: int) -> float | None:
        return None if assignment.settings["lr"] > 0.1 else distance_to_optimum(assignment, epoch)

    late: list[bool] = []
    for seed in range(5):
        store, study = begin({**sampler, "seed": seed}, CONTINUOUS, n_trials=40)
        play(store, study, score=score)
        runs = runs_of(store, study)
        failed = [run.state is RunState.FAIL for run in runs]
        assert failed == [run.params["lr"] > 0.1 for run in runs]
        late += failed[20:]
    assert sum(late) / len(late) < 0.25


def test_an_accident_is_no_evidence() -> None:
    """A worker's death is recorded as FAIL like a divergence, but says nothing of the settings."""
    from search.states import FailureKind
    from search.trial_views import FAILURE_KIND, as_complete, by_last_value

    study = optuna.create_study(direction="maximize")
    for kind in (*FailureKind, None):
        trial = study.ask()
        if kind is not None:
            trial.set_user_attr(FAILURE_KIND, kind.value)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    results = {FailureKind.DIVERGED, FailureKind.NO_METRIC, FailureKind.OUT_OF_MEMORY}
    for view, state in (
        (by_last_value, optuna.trial.TrialState.PRUNED),
        (as_complete, optuna.trial.TrialState.COMPLETE),
    ):
        shown = view(study.get_trials(deepcopy=False), study.directions)
        assert [t.state is state for t in shown] == [kind in results for kind in (*FailureKind, None)]
    assert all(t.state is optuna.trial.TrialState.FAIL for t in study.trials)


@pytest.mark.parametrize(("direction", "worst"), [("maximize", 0.25), ("minimize", 0.75)])
def test_numeric_samplers_see_last_values_and_the_worst(direction: str, worst: float) -> None:
    from search.trial_views import FAILURE_KIND, as_complete

    study = optuna.create_study(direction=direction)
    complete, pruned, silent, diverged = (study.ask() for _ in range(4))
    study.tell(complete, 0.75)
    pruned.report(0.5, step=1)
    pruned.report(0.25, step=3)
    study.tell(pruned, state=optuna.trial.TrialState.PRUNED)
    study.tell(silent, state=optuna.trial.TrialState.PRUNED)
    diverged.set_user_attr(FAILURE_KIND, "diverged")
    study.tell(diverged, state=optuna.trial.TrialState.FAIL)
    shown = as_complete(study.get_trials(deepcopy=False), study.directions)
    assert [trial.value for trial in shown] == [0.75, 0.25, None, worst]


def test_tpe_sees_pruned_trials_with_their_last_value_and_diverged_ones_below_all() -> None:
    from search.trial_views import FAILURE_KIND, by_last_value

    study = optuna.create_study(direction="maximize")
    complete, pruned, silent, diverged = (study.ask() for _ in range(4))
    study.tell(complete, 0.125)
    pruned.report(0.5, step=1)
    study.tell(pruned, state=TrialState.PRUNED)
    study.tell(silent, state=TrialState.PRUNED)
    diverged.report(0.75, step=1)
    diverged.set_user_attr(FAILURE_KIND, "diverged")
    study.tell(diverged, state=TrialState.FAIL)
    shown = by_last_value(study.get_trials(deepcopy=False), study.directions)
    assert [(t.state.name, t.value, t.intermediate_values) for t in shown[1:]] == [
        ("COMPLETE", 0.5, {}), ("PRUNED", None, {}), ("PRUNED", None, {})
    ]  # fmt: skip


def test_cmaes_sees_no_pruned_trial_and_diverged_ones_as_the_worst() -> None:
    from search.trial_views import FAILURE_KIND, worst_where_diverged

    study = optuna.create_study(direction="maximize")
    good, poor, pruned, diverged = (study.ask() for _ in range(4))
    study.tell(good, 0.75)
    study.tell(poor, 0.5)
    pruned.report(0.25, step=1)
    study.tell(pruned, state=optuna.trial.TrialState.PRUNED)
    diverged.set_user_attr(FAILURE_KIND, "diverged")
    study.tell(diverged, state=optuna.trial.TrialState.FAIL)
    shown = worst_where_diverged(study.get_trials(deepcopy=False), study.directions)
    complete = [trial for trial in shown if trial.state is optuna.trial.TrialState.COMPLETE]
    assert [trial.value for trial in complete] == [0.75, 0.5, 0.5]
    built = optuna_samplers.build(
        samplers.CmaEsSampler(name="cmaes"), TypeAdapter(Space).validate_python(CONTINUOUS), label="a", trial_number=0
    )
    assert built._view is worst_where_diverged


def test_of_very_many_trials_tpe_sees_the_latest_the_best_and_those_that_run() -> None:
    from search.trial_views import MAX_SHOWN, N_BEST, by_last_value

    state = optuna.trial.TrialState
    study = optuna.create_study(direction="minimize")
    values = [float((7919 * i) % 3001) for i in range(3000)]  # all different
    for i, value in enumerate(values):
        running = i in (5, 2999)
        study.add_trial(
            optuna.trial.create_trial(
                state=state.RUNNING if running else state.COMPLETE, value=None if running else value
            )
        )
    shown = by_last_value(study.get_trials(deepcopy=False), study.directions)
    numbers = [trial.number for trial in shown]
    assert numbers == sorted(set(numbers))
    assert numbers[-MAX_SHOWN:] == list(range(3000 - MAX_SHOWN, 3000))
    assert 5 in numbers
    best = sorted(range(3000), key=lambda i: values[i] if i not in (5, 2999) else math.inf)[:N_BEST]
    assert set(best) <= set(numbers)
    assert len(numbers) <= MAX_SHOWN + N_BEST + 1


def test_qmc_covers_the_square_evenly_from_the_first_trial() -> None:
    """The first 16 points of a scrambled Sobol sequence: one in every column and every row of sixteenths."""
    store, study = begin({"name": "qmc"}, CONTINUOUS, n_trials=16)
    play(store, study, slots=3)
    rows = {math.floor(16 * (math.log10(params["lr"]) + 3) / 3) for params in tried(store, study)}
    columns = {math.floor(16 * (params["lambd"] - 0.02) / 0.38) for params in tried(store, study)}
    assert rows == columns == set(range(16))


def test_all_optimizers_of_a_study_have_one_qmc_sequence() -> None:
    """Equal places in spaces of as many parameters, whatever their names and ranges."""
    other = {"beta": {"type": "float", "low": 0.0, "high": 0.5}, "lr": CONTINUOUS["lr"]}
    store = MemoryStore()
    optimizers = [
        {"name": "admetar", "space": CONTINUOUS},
        {"name": "admetar", "label": "again", "space": CONTINUOUS},
        {"name": "admetas", "space": other},
    ]
    study = store.add_study(
        define(optimizers=optimizers, sampler={"name": "qmc"}, budget={"trials_per_optimizer": 8}, confirm={"top_k": 0})
    )
    play(store, study, slots=3)
    drawn = [
        [run.params for run in runs_of(store, study) if run.search_id == search.id]
        for search in store.searches(study.id)
    ]
    assert drawn[0] == drawn[1]
    for ours, theirs in zip(drawn[0], drawn[2], strict=True):
        assert theirs["beta"] == pytest.approx((ours["lambd"] - 0.02) / 0.38 * 0.5)
        assert theirs["lr"] == pytest.approx(ours["lr"])


def test_the_first_failure_does_not_hold_qmc_in_place() -> None:
    """Optuna's own repeats its first point until a trial succeeds."""
    store, study = begin({"name": "qmc"}, CONTINUOUS, n_trials=6)
    play(store, study, score=lambda assignment, epoch: None)
    assert len({params["lr"] for params in tried(store, study)}) == 6


@pytest.mark.parametrize("pruner", ["asha", "hyperband", "median"])
def test_a_restart_under_a_pruner_changes_nothing(pruner: str) -> None:
    changes = {"pruner": {"name": pruner}, "task": {"name": "synthetic", "model": "idle", "epochs": 9}}
    whole_store, whole = begin(TPE, CONTINUOUS, **changes)
    play(whole_store, whole)
    store, study = begin(TPE, CONTINUOUS, **changes)
    play(store, study, rounds=31)
    play(store, study, owner="second")
    assert [(r.params, r.state, r.epoch) for r in runs_of(store, study)] == [
        (r.params, r.state, r.epoch) for r in runs_of(whole_store, whole)
    ]


def test_the_order_of_keys_changes_nothing() -> None:
    store, study = begin(TPE, MIXED)
    play(store, study)
    other_store, other = begin(TPE, dict(reversed(MIXED.items())))
    play(other_store, other)
    assert tried(store, study) == tried(other_store, other)


def test_tpe_beats_random_on_a_smooth_valley() -> None:
    def best(sampler: dict[str, Any]) -> float:
        store, study = begin(sampler, CONTINUOUS, n_trials=30)
        play(store, study)
        return max(run.value or -math.inf for run in runs_of(store, study))

    tpe = [best({"name": "tpe", "seed": seed}) for seed in range(5)]
    random = [best({"name": "random", "seed": seed}) for seed in range(5)]
    assert sorted(tpe)[2] > sorted(random)[2]


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (FINITE, 12),
        ({"k": {"type": "int", "low": 1, "high": 10, "step": 4}}, 3),
        (CONTINUOUS, None),
        (CONDITIONAL, None),
    ],
)
def test_configurations_are_listed_where_they_can_be_counted(space: dict[str, Any], size: int | None) -> None:
    listed = samplers.configurations(TypeAdapter(Space).validate_python(space))
    assert (None if listed is None else len(listed)) == size


def test_what_a_grid_begins_with_takes_one_point_each() -> None:
    space = TypeAdapter(Space).validate_python(FINITE)
    grid = optuna_samplers.build(
        samplers.GridSampler(name="grid"), space, label="a", trial_number=0, first=[{"lr": 0.1}, {"lr": 0.05}]
    )
    points = grid._points()
    assert [point["lr"] for point in points[:2]] == [0.1, 0.05]
    assert len({json.dumps(point) for point in points}) == len(points) == 12


def test_a_grid_point_lost_by_accident_comes_again_last() -> None:
    from search.trial_views import FAILURE_KIND

    space = TypeAdapter(Space).validate_python({"lr": FINITE["lr"]})
    grid = optuna_samplers.build(samplers.GridSampler(name="grid"), space, label="a", trial_number=0)
    study = optuna.create_study(sampler=grid)
    failed = {0: "lost", 1: "diverged"}
    drawn = []
    for number in range(4):
        trial = study.ask()
        drawn.append(trial.suggest_categorical("lr", [0.1, 0.05, 0.01]))
        if number in failed:
            trial.set_user_attr(FAILURE_KIND, failed[number])
        study.tell(trial, *([None, optuna.trial.TrialState.FAIL] if number in failed else [1.0]))
    assert len(set(drawn[:3])) == 3
    assert drawn[3] == drawn[0]


def test_seeds_are_the_same_on_every_machine() -> None:
    assert derive_seed(0, "admetar", 3, bits=32) == 1_267_691_740
    assert derive_seed(0, "admetar", bits=32) != derive_seed(0, "admetas", bits=32)
