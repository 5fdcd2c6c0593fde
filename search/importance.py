"""How much of the differences between a search's trials each parameter explains.

A pure function of an Optuna study; the service loads the study and caches the result.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search.errors import TooFewTrialsError
from search.states import ImportanceMethod

if TYPE_CHECKING:
    import optuna

MIN_TRIALS = 10
"""Minimum number of complete trials; results from fewer are mostly chance."""

FANOVA_TRIALS = 500
"""Largest number of trials for fANOVA, whose random forest then takes seconds; PED-ANOVA takes milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Importance:
    """Shares by parameter, largest first, with sum 1.

    Attributes:
        n_trials: number of complete trials used; pruned and failed ones have no comparable value.
    """

    method: ImportanceMethod
    shares: dict[str, float]
    n_trials: int


def importance(study: optuna.Study, *, method: ImportanceMethod | None = None, seed: int = 0) -> Importance:
    """Importance of each parameter that varied.

    Args:
        method: None: fANOVA up to 500 trials of a space without conditions, otherwise PED-ANOVA.
        seed: of fANOVA's forest.

    Raises:
        TooFewTrialsError: fewer than 10 complete trials, or all of them have one value.
    """
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances
    from optuna.trial import TrialState

    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    complete = [trial for trial in complete if trial.value is not None and math.isfinite(trial.value)]
    if len(complete) < MIN_TRIALS:
        raise TooFewTrialsError(
            f"search '{study.study_name}' has {len(complete)} complete trials; importance needs at least {MIN_TRIALS}. "
            "Wait for more, or prune fewer."
        )
    if len({trial.value for trial in complete}) == 1:
        raise TooFewTrialsError(
            f"all {len(complete)} complete trials of search '{study.study_name}' have the value {complete[0].value}; "
            "no parameter can explain a difference."
        )
    chosen = method or _suited(complete)
    evaluator = (
        FanovaImportanceEvaluator(seed=seed) if chosen is ImportanceMethod.FANOVA else PedAnovaImportanceEvaluator()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns about small samples; `n_trials` shows the size
        shares = get_param_importances(study, evaluator=evaluator)
    ordered = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return Importance(method=chosen, shares={name: float(share) for name, share in ordered}, n_trials=len(complete))


def _suited(complete: list[optuna.trial.FrozenTrial]) -> ImportanceMethod:
    conditional = len({frozenset(trial.params) for trial in complete}) > 1
    return ImportanceMethod.PED_ANOVA if conditional or len(complete) > FANOVA_TRIALS else ImportanceMethod.FANOVA
