"""Importance of parameters: right on functions whose answer is known, and silent where nothing can be said."""

from __future__ import annotations

from collections.abc import Callable

import optuna
import pytest

from search.errors import TooFewTrialsError
from search.importance import Importance, importance
from search.states import ImportanceMethod


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


def test_many_trials_are_left_to_ped_anova() -> None:
    found = importance(study_of(mostly_lr, n_trials=600))
    assert found.method is ImportanceMethod.PED_ANOVA


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
    with pytest.raises(TooFewTrialsError, match="'s/admetar' has 9 complete trials; importance needs at least 10"):
        importance(study_of(mostly_lr, n_trials=9))


def test_pruned_and_failed_trials_do_not_count() -> None:
    def objective(trial: optuna.Trial) -> float:
        value = mostly_lr(trial)
        if trial.number % 2:
            raise optuna.TrialPruned
        return value

    with pytest.raises(TooFewTrialsError, match="has 8 complete trials"):
        importance(study_of(objective, n_trials=16))
    assert isinstance(importance(study_of(objective, n_trials=40)), Importance)


def test_equal_results_have_nothing_to_explain() -> None:
    with pytest.raises(TooFewTrialsError, match=r"all 12 complete trials .* have the value -?0.0"):
        importance(study_of(lambda trial: 0.0 * mostly_lr(trial), n_trials=12))
