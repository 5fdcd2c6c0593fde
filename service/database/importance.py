"""The importance of a search's parameters, remembered beside its Optuna study until another of its trials completes.

It rests on the complete trials alone, whose parameters and values never change, so their number tells whether it still
holds. Working it out anew reads every trial and grows a forest: seconds, where remembering takes milliseconds.
"""

from __future__ import annotations

import optuna
from optuna.storages._rdb import models as optuna_models
from optuna.trial import TrialState
from sqlalchemy import Engine, func, select

from search.importance import Importance, importance
from search.states import ImportanceMethod
from service.database.engine import reading

_KEY = "admeta:importance:"


def search_importance(
    engine: Engine, storage: optuna.storages.BaseStorage, optuna_name: str, *, method: ImportanceMethod | None
) -> Importance:
    """As `search.importance.importance`.

    Args:
        optuna_name: the search's Optuna study.

    Raises:
        KeyError: it has none yet: no trial has begun.
        TooFewTrialsError: see there.
    """
    study_id = storage.get_study_id_from_name(optuna_name)
    n_complete = _n_complete(engine, study_id)
    key = _KEY + ("auto" if method is None else method.value)
    known = storage.get_study_system_attrs(study_id).get(key)
    if known is not None and known["n_complete"] == n_complete:
        return Importance(method=ImportanceMethod(known["method"]), shares=known["shares"], n_trials=known["n_trials"])
    found = importance(optuna.load_study(study_name=optuna_name, storage=storage), method=method)
    content = {"method": found.method.value, "shares": found.shares, "n_trials": found.n_trials}
    storage.set_study_system_attr(study_id, key, {"n_complete": n_complete, **content})
    return found


def _n_complete(engine: Engine, study_id: int) -> int:
    trial = optuna_models.TrialModel
    query = select(func.count()).where(trial.study_id == study_id, trial.state == TrialState.COMPLETE)
    with reading(engine) as session:
        return session.execute(query).scalar_one()
