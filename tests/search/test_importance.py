"""Importance of parameters: right on functions whose answer is known, and silent where nothing can be said."""

from __future__ import annotations

import logging
from collections.abc import Callable

import optuna
import pytest

from search.errors import TooFewTrialsError
from search.importance import importance
from search.states import FailureKind, ImportanceMethod
from search.trial_views import FAILURE_KIND


def study_of(
    objective: Callable[[optuna.Trial], float], *, n_trials: int = 60, direction: str = "maximize"
) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name="s/admetar", direction=direction, sampler=optuna.samplers.RandomSampler(seed=0)
    )
    study.optimize(objective, n_trials=n_trials)
    return study


def mostly_lr(trial: optuna.Trial) -> float:
    lr, lambd, k = trial.suggest_float("lr", 0, 1), trial.suggest_float("lambd", 0, 1), trial.suggest_int("k", 1, 9)
    return -((lr - 0.3) ** 2) - 0.01 * (lambd - 0.5) ** 2 + 0.0 * k


@pytest.mark.parametrize("method", [None, *ImportanceMethod])
@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_the_parameter_that_matters_comes_first(method: ImportanceMethod | None, direction: str) -> None:
    sign = 1 if direction == "maximize" else -1
    found = importance(study_of(lambda trial: sign * mostly_lr(trial), direction=direction), method=method)
    assert next(iter(found.shares)) == "lr"
    assert found.shares["lr"] > 0.7
    assert sum(found.shares.values()) == pytest.approx(1)
    assert list(found.shares.values()) == sorted(found.shares.values(), reverse=True)
    assert found.n_trials == 60
    assert found.method is (method or ImportanceMethod.FANOVA)


def test_the_same_study_gives_the_same_answer() -> None:
    study = study_of(mostly_lr)
    assert importance(study) == importance(study)


def test_many_trials_are_left_to_ped_anova(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of(mostly_lr, n_trials=600)
    optuna.logging.set_verbosity(optuna.logging.INFO)
    monkeypatch.setattr(logging.getLogger("optuna"), "propagate", True)
    found = importance(study)
    assert found.method is ImportanceMethod.PED_ANOVA
    assert not caplog.messages  # Optuna would log each resample as a new study


def test_conditional_parameters_are_counted() -> None:
    def objective(trial: optuna.Trial) -> float:
        if trial.suggest_categorical("dema", ["full", "off"]) == "off":
            return 0.0
        return trial.suggest_float("lambd", 0, 1)

    found = importance(study_of(objective))
    assert found.method is ImportanceMethod.PED_ANOVA
    assert set(found.shares) == {"dema", "lambd"}


def test_a_single_parameter_has_all_of_it() -> None:
    assert importance(study_of(lambda trial: trial.suggest_float("lr", 0, 1))).shares == {"lr": pytest.approx(1.0)}


def test_too_few_trials_are_counted_in_the_error() -> None:
    with pytest.raises(TooFewTrialsError, match="'s/admetar' has 9 trials with a value; importance needs at least 10"):
        importance(study_of(mostly_lr, n_trials=9))


def with_ends(n_trials: int, *, kind: FailureKind) -> optuna.Study:
    """One in four trials is complete; one in four failed, where lr is small; the others are pruned at a value."""

    def objective(trial: optuna.Trial) -> float:
        value = mostly_lr(trial)
        if trial.number % 4 == 0:
            return value
        if trial.number % 4 == 1:
            trial.set_user_attr(FAILURE_KIND, kind.value)
            raise ValueError
        trial.report(value - 1, step=1)
        raise optuna.TrialPruned

    study = optuna.create_study(
        study_name="s/admetar", direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0)
    )
    study.optimize(objective, n_trials=n_trials, catch=ValueError)
    return study


def test_pruned_and_diverged_trials_count_and_accidents_do_not() -> None:
    found = importance(with_ends(20, kind=FailureKind.DIVERGED))
    assert (found.n_trials, found.n_complete) == (20, 5)
    found = importance(with_ends(20, kind=FailureKind.LOST))
    assert (found.n_trials, found.n_complete) == (15, 5)
    with pytest.raises(TooFewTrialsError, match="has 9 trials with a value"):
        importance(with_ends(12, kind=FailureKind.LOST))


def test_where_a_parameter_diverges_it_matters() -> None:
    """By the complete trials alone, lambd is all there is."""

    def objective(trial: optuna.Trial) -> float:
        lr, lambd = trial.suggest_float("lr", 0, 1), trial.suggest_float("lambd", 0, 1)
        if lr > 0.5:
            trial.set_user_attr(FAILURE_KIND, "diverged")
            raise ValueError
        return 0.01 * lambd

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=60, catch=ValueError)
    assert importance(study).shares["lr"] > 0.6


@pytest.mark.parametrize("method", ImportanceMethod)
def test_intervals_contain_the_share_and_shrink_with_trials(method: ImportanceMethod) -> None:
    few, many = (importance(study_of(mostly_lr, n_trials=n), method=method) for n in (15, 150))
    for found in (few, many):
        assert found.intervals.keys() == found.shares.keys()
        for name, share in found.shares.items():
            low, high = found.intervals[name]
            assert 0 <= low <= share <= high <= 1
    low, high = many.intervals["lr"]
    assert high - low < few.intervals["lr"][1] - few.intervals["lr"][0]


def test_trees_are_those_whose_mean_optuna_gives() -> None:
    """The order of the features is Optuna's own; a parameter with one value has no share."""

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_categorical("fixed", ["one"])
        return mostly_lr(trial)

    found = importance(study_of(objective))
    assert found.intervals["fixed"] == (0.0, 0.0)
    low, high = found.intervals["lr"]
    assert low > 0.5
    assert found.intervals["k"][1] < 0.5 < high


def test_equal_results_have_nothing_to_explain() -> None:
    with pytest.raises(TooFewTrialsError, match=r"all 12 trials .* have the value -?0.0"):
        importance(study_of(lambda trial: 0.0 * mostly_lr(trial), n_trials=12))
