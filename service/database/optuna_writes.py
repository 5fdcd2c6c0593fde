"""Optuna's most frequent writes in as few statements as they need: a driver makes them for every trial and epoch.

Each does what Optuna's own does, or tells that it did nothing (the trial has ended, a row is missing), and then the
own one is called, which raises what is due. Statements are built once, for the dialect they run on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from optuna.distributions import BaseDistribution, check_distribution_compatibility, distribution_to_json
from optuna.storages._rdb import models
from optuna.trial import TrialState
from sqlalchemy import Connection, Table, bindparam, func, insert, literal, select, update

from service.database.engine import insert_for

_TRIALS: Table = models.TrialModel.__table__
_PARAMS: Table = models.TrialParamModel.__table__
_VALUES: Table = models.TrialValueModel.__table__
_POINTS: Table = models.TrialIntermediateValueModel.__table__
_ATTRIBUTES: Table = models.TrialSystemAttributeModel.__table__
_STUDIES: Table = models.StudyModel.__table__
_OPEN = (TrialState.RUNNING, TrialState.WAITING)
_COUNTED = {"preserve_rowcount": True}  # unless asked, SQLAlchemy answers −1 for an INSERT on some databases
_IS_OPEN = select(literal(1)).where(_TRIALS.c.trial_id == bindparam("b_trial"), _TRIALS.c.state.in_(_OPEN)).exists()

_LOCK_STUDY = select(_STUDIES.c.study_id).where(_STUDIES.c.study_id == bindparam("b_study")).with_for_update()
_N_TRIALS = select(func.count()).where(_TRIALS.c.study_id == bindparam("b_study")).scalar_subquery()
_NEW_TRIAL = (
    insert(_TRIALS)
    .values(
        study_id=bindparam("b_study"), number=_N_TRIALS, state=TrialState.RUNNING, datetime_start=bindparam("b_start")
    )
    .returning(_TRIALS.c.trial_id, _TRIALS.c.number)
)
_NEW_ATTRIBUTE = insert(_ATTRIBUTES)
_END = (
    update(_TRIALS)
    .where(_TRIALS.c.trial_id == bindparam("b_trial"), _TRIALS.c.state.in_(_OPEN))
    .values(state=bindparam("b_state"), datetime_complete=bindparam("b_end"))
)


def new_trial(connection: Connection, study_id: int, attributes: Mapping[str, Any]) -> tuple[int, int, datetime] | None:
    """A RUNNING trial with these system attributes: its id, number and start; None where there is no such study."""
    if connection.execute(_LOCK_STUDY, {"b_study": study_id}).first() is None:
        return None
    start = datetime.now()  # as Optuna's: local, without a zone
    trial_id, number = connection.execute(_NEW_TRIAL, {"b_study": study_id, "b_start": start}).one()
    rows = [{"trial_id": trial_id, "key": key, "value_json": json.dumps(value)} for key, value in attributes.items()]
    connection.execute(_NEW_ATTRIBUTE, rows)
    return trial_id, number, start


class Writes:
    """The writes to a trial, on connections of one dialect. Each says whether it was done."""

    def __init__(self, dialect: str) -> None:
        on_conflict = insert_for(dialect)
        self._param = (
            on_conflict(_PARAMS)
            .from_select(
                ["trial_id", "param_name", "param_value", "distribution_json"],
                select(
                    bindparam("b_trial", type_=_PARAMS.c.trial_id.type),
                    bindparam("b_name", type_=_PARAMS.c.param_name.type),
                    bindparam("b_value", type_=_PARAMS.c.param_value.type),
                    bindparam("b_json", type_=_PARAMS.c.distribution_json.type),
                ).where(_IS_OPEN),
            )
            .on_conflict_do_nothing()
        )
        point = on_conflict(_POINTS).from_select(
            ["trial_id", "step", "intermediate_value", "intermediate_value_type"],
            select(
                bindparam("b_trial", type_=_POINTS.c.trial_id.type),
                bindparam("b_step", type_=_POINTS.c.step.type),
                bindparam("b_value", type_=_POINTS.c.intermediate_value.type),
                bindparam("b_type", type_=_POINTS.c.intermediate_value_type.type),
            ).where(_IS_OPEN),
        )
        self._point = point.on_conflict_do_update(
            index_elements=["trial_id", "step"],
            set_={name: point.excluded[name] for name in ("intermediate_value", "intermediate_value_type")},
        )
        value = on_conflict(_VALUES)
        self._value = value.on_conflict_do_update(
            index_elements=["trial_id", "objective"],
            set_={name: value.excluded[name] for name in ("value", "value_type")},
        )

    def param(
        self,
        connection: Connection,
        trial_id: int,
        name: str,
        value: float,
        distribution: BaseDistribution,
        before: BaseDistribution,
    ) -> bool:
        """A parameter's value, in Optuna's form. Raises ValueError where another trial drew it from another kind."""
        check_distribution_compatibility(before, distribution)
        row = {"b_trial": trial_id, "b_name": name, "b_value": value, "b_json": distribution_to_json(distribution)}
        return connection.execute(self._param, row, execution_options=_COUNTED).rowcount > 0

    def point(self, connection: Connection, trial_id: int, step: int, value: float) -> bool:
        """The value at a step, in place of one that is there."""
        stored, kind = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr(value)
        row = {"b_trial": trial_id, "b_step": step, "b_value": stored, "b_type": kind}
        return connection.execute(self._point, row, execution_options=_COUNTED).rowcount > 0

    def end(self, connection: Connection, trial_id: int, state: TrialState, values: Sequence[float] | None) -> bool:
        """The trial's end, with its values."""
        row = {"b_trial": trial_id, "b_state": state, "b_end": datetime.now()}
        if not connection.execute(_END, row).rowcount:
            return False
        for objective, value in enumerate(values or ()):
            stored, kind = models.TrialValueModel.value_to_stored_repr(value)
            content = {"trial_id": trial_id, "objective": objective, "value": stored, "value_type": kind}
            connection.execute(self._value, content)
        return True
