"""How much of the differences between a search's trials each parameter explains, and how sure that is.

A pure function of an Optuna study; the service loads the study and caches the result.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from search.errors import TooFewTrialsError
from search.states import ImportanceMethod

if TYPE_CHECKING:
    import optuna

MIN_TRIALS = 10
"""Minimum number of trials; results from fewer are mostly chance."""

FANOVA_TRIALS = 200
"""Largest number of trials for fANOVA, whose random forest then takes seconds."""

_RESAMPLED_TRIALS = 20_000  # trials of all resamples behind PED-ANOVA's intervals: a second or two
_TAIL = 0.025  # on either side; measured, the intervals then hold in 87 to 98 % (docs/search.md)
_NOTHING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Importance:
    """Shares by parameter, largest first, with sum 1.

    Attributes:
        intervals: by parameter, low and high end of a 90 % interval of its share.
        n_trials: number of trials used: complete, pruned and diverged ones.
        n_complete: those of them that are complete.
    """

    method: ImportanceMethod
    shares: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    n_trials: int
    n_complete: int


def importance(study: optuna.Study, *, method: ImportanceMethod | None = None, seed: int = 0) -> Importance:
    """Importance of each parameter that varied, for the rank of a trial among the others.

    A pruned trial is ranked by its last value, a diverged one last; trials that met with an accident are left out. The
    complete ones alone are few where a pruner is at work, and chosen by their values. Ranks are not carried away by the
    values of bad trials, which may be anything. Of several objectives the first one counts.

    The interval of fANOVA is that of its trees, each of which is fitted to a resample of the trials; PED-ANOVA is
    repeated on resamples. docs/search.md says how often such intervals hold.

    Args:
        method: None: fANOVA up to 200 trials of a space without conditions, otherwise PED-ANOVA.
        seed: of fANOVA's forest, and of the resamples.

    Raises:
        TooFewTrialsError: fewer than 10 trials, or all of them have one value.
    """
    from optuna.trial import TrialState

    from search.trial_views import as_complete, of_first_objective

    found, directions = [*map(of_first_objective, study.get_trials(deepcopy=False))], study.directions[:1]
    n_complete = sum(trial.state is TrialState.COMPLETE for trial in found)
    trials = [
        trial
        for trial in as_complete(found, directions)
        if trial.state is TrialState.COMPLETE and trial.value is not None and math.isfinite(trial.value)
    ]
    if len(trials) < MIN_TRIALS:
        raise TooFewTrialsError(
            f"search '{study.study_name}' has {len(trials)} trials with a value; importance needs at least "
            f"{MIN_TRIALS}. Wait for more, or extend the study once it has ended."
        )
    if len({trial.value for trial in trials}) == 1:
        raise TooFewTrialsError(
            f"all {len(trials)} trials of search '{study.study_name}' have the value {trials[0].value}; "
            "no parameter can explain a difference."
        )
    ranked = _by_rank(trials, directions[0])
    chosen = method or _suited(ranked)
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns about small samples; the intervals show what they are worth
        shares, spread = _fanova(ranked, seed) if chosen is ImportanceMethod.FANOVA else _ped_anova(ranked, rng)
    ends = {name: np.quantile(of, [_TAIL, 1 - _TAIL]) for name, of in spread.items()}
    return Importance(
        method=chosen,
        shares=dict(sorted(shares.items(), key=lambda item: (-item[1], item[0]))),
        intervals={
            name: (min(share, float(ends[name][0])), max(share, float(ends[name][1]))) for name, share in shares.items()
        },
        n_trials=len(trials),
        n_complete=n_complete,
    )


def _by_rank(
    trials: Sequence[optuna.trial.FrozenTrial], direction: optuna.study.StudyDirection
) -> list[optuna.trial.FrozenTrial]:
    """The trials with their rank for a value, from 0 to 1, the best being 0; equal ones share the mean rank."""
    from optuna.study import StudyDirection
    from scipy.stats import rankdata

    sign = -1.0 if direction is StudyDirection.MAXIMIZE else 1.0
    ranks = rankdata([sign * trial.value for trial in trials if trial.value is not None]) / len(trials)
    ranked = [copy.copy(trial) for trial in trials]
    for trial, rank in zip(ranked, ranks, strict=True):
        trial.value = float(rank)
    return ranked


def _suited(trials: Sequence[optuna.trial.FrozenTrial]) -> ImportanceMethod:
    conditional = len({frozenset(trial.params) for trial in trials}) > 1
    return ImportanceMethod.PED_ANOVA if conditional or len(trials) > FANOVA_TRIALS else ImportanceMethod.FANOVA


def _study_of(trials: Sequence[optuna.trial.FrozenTrial]) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would log each of these studies
    study = optuna.study.create_study(direction="minimize")
    study.add_trials(trials)
    return study


Shares = dict[str, float]
Spread = dict[str, NDArray[np.float64]]


def _fanova(trials: Sequence[optuna.trial.FrozenTrial], seed: int) -> tuple[Shares, Spread]:
    """Shares of the main effects, and of each tree's main effects. Source: Hutter et al., ICML 2014."""
    from optuna.importance import FanovaImportanceEvaluator

    evaluator = FanovaImportanceEvaluator(seed=seed)
    try:
        effects = evaluator.evaluate(_study_of(trials))
    except RuntimeError:  # no tree has a split
        raise TooFewTrialsError(f"the {len(trials)} trials do not differ in any parameter.") from None
    forest = evaluator._evaluator
    trees, variances = forest._trees or [], forest._variances or {}
    names = sorted(name for name in effects if not all(trial.distributions[name].single() for trial in trials))
    known = np.array([tree.variance > 0 for tree in trees])
    total = np.array([tree.variance for tree in trees])[known]
    of_tree = np.array([variances[i][known] / total for i in range(len(names))])
    spread = of_tree / np.maximum(of_tree.sum(axis=0), _NOTHING)
    return _shares(effects), dict.fromkeys(effects, np.zeros(1)) | dict(zip(names, spread, strict=True))


def _ped_anova(trials: Sequence[optuna.trial.FrozenTrial], rng: np.random.Generator) -> tuple[Shares, Spread]:
    """Shares of the whole, and of each resample. Source: Watanabe et al., IJCAI 2023."""
    from optuna.importance import PedAnovaImportanceEvaluator

    evaluator, n = PedAnovaImportanceEvaluator(), len(trials)
    n_resamples = min(50, max(10, _RESAMPLED_TRIALS // n))
    found = _shares(evaluator.evaluate(_study_of(trials)))
    resampled = [
        _shares(evaluator.evaluate(_study_of([trials[i] for i in rng.integers(n, size=n)]))) for _ in range(n_resamples)
    ]
    return found, {name: np.array([of.get(name, 0.0) for of in resampled]) for name in found}


def _shares(effects: Mapping[str, float]) -> Shares:
    """The effects with sum 1; alike where there are none."""
    total = math.fsum(effects.values())
    if total <= _NOTHING:
        return {name: 1 / len(effects) for name in effects}
    return {name: float(effect) / total for name, effect in effects.items()}
