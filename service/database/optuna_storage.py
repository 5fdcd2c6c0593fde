"""Optuna's storage in our database: the same connection settings, no password in it, calls repeated in an outage.

Optuna's tables are created by `service.database.schema.prepare`. The only writer of a search is its study's driver, so
a call that failed in the middle may be repeated; where repeating is not harmless, what it did is looked up first.

Optuna makes the writes of every trial and epoch in many statements. `_Writes` makes the most frequent ones in as few as
possible. `tests/service/database/test_optuna_private.py` lists every private name of Optuna that is used.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeVar, cast

import optuna
from optuna.distributions import BaseDistribution, check_distribution_compatibility, distribution_to_json
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage, _CachedStorage
from optuna.storages._rdb import models
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import Connection, Engine, Table, bindparam, func, insert, literal, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool

from service.database.engine import connector, immediate, insert_for, one_statement, reading, set_up_transactions
from service.database.errors import DatabaseVersionError
from service.database.retry import RetryPolicy, call, may_have_committed

T = TypeVar("T")
NONCE_KEY = "admeta:nonce"
_POOL_SIZE = 5
_WRITES = frozenset(
    {
        "delete_study",
        "set_study_system_attr",
        "set_study_user_attr",
        "set_trial_system_attr",
        "set_trial_user_attr",
    }
)

_TRIALS: Table = models.TrialModel.__table__
_PARAMS: Table = models.TrialParamModel.__table__
_VALUES: Table = models.TrialValueModel.__table__
_POINTS: Table = models.TrialIntermediateValueModel.__table__
_ATTRIBUTES: Table = models.TrialSystemAttributeModel.__table__
_STUDIES: Table = models.StudyModel.__table__
_OPEN = _TRIALS.c.state.in_((TrialState.RUNNING, TrialState.WAITING))
_TRIAL_IS_OPEN = select(literal(1)).where(_TRIALS.c.trial_id == bindparam("b_trial_id"), _OPEN).exists()
_LOCK_STUDY = select(_STUDIES.c.study_id).where(_STUDIES.c.study_id == bindparam("b_study")).with_for_update()
_NEW_TRIAL = (
    insert(_TRIALS)
    .values(
        study_id=bindparam("b_study"),
        number=select(func.count()).where(_TRIALS.c.study_id == bindparam("b_study")).scalar_subquery(),
        state=bindparam("b_state"),
        datetime_start=bindparam("b_start"),
    )
    .returning(_TRIALS.c.trial_id, _TRIALS.c.number)
)
_FIND_BY_NONCE = (
    select(_TRIALS.c.trial_id, _TRIALS.c.number, _TRIALS.c.datetime_start)
    .join(_ATTRIBUTES, _ATTRIBUTES.c.trial_id == _TRIALS.c.trial_id)
    .where(
        _TRIALS.c.study_id == bindparam("b_study"),
        _ATTRIBUTES.c.key == NONCE_KEY,
        _ATTRIBUTES.c.value_json == bindparam("b_nonce"),
    )
)
_END = (
    update(_TRIALS)
    .where(_TRIALS.c.trial_id == bindparam("b_trial"), _OPEN)
    .values(state=bindparam("b_state"), datetime_complete=bindparam("b_end"))
)
_COUNTED = {"preserve_rowcount": True}  # unless asked, SQLAlchemy answers −1 for an INSERT on some databases


def optuna_storage(engine: Engine, policy: RetryPolicy) -> optuna.storages.BaseStorage:
    """Optuna's cached storage on the engine's database. The heartbeat is off: the driver's lease replaces it.

    Raises:
        DatabaseUnavailableError: the database did not answer within the policy's time.
        RuntimeError: Optuna's tables are missing or of another version; run `prepare` first.
    """
    storage = call(lambda: _rdb_storage(engine), policy, errors=(SQLAlchemyError, StorageInternalError))
    return _CachedStorage(_RetryingStorage(storage, policy))


def optuna_study_id(engine: Engine, name: str) -> int | None:
    """Optuna's id of the study of this name; None where it has no trial yet."""
    model = models.StudyModel
    with reading(engine) as session:
        return session.execute(select(model.study_id).where(model.study_name == name)).scalar_one_or_none()


def upgrade_optuna_tables(engine: Engine) -> None:
    """Create Optuna's tables, or bring them to the version of the Optuna installed.

    Raises:
        DatabaseVersionError: they are of a newer Optuna.
    """
    models.BaseModel.metadata.create_all(engine)
    storage = _rdb_storage(engine)
    try:
        found, needed = storage.get_current_version(), storage.get_head_version()
        if found == needed:
            return
        known = storage.get_all_versions()
    finally:
        storage.engine.dispose()
    if found not in known:
        raise DatabaseVersionError(
            f"Optuna's tables are at version {found}; Optuna {optuna.__version__} knows up to {needed}.",
            hint="A newer Optuna upgraded this database; install that version, or use another database.",
        )
    url = engine.url.render_as_string(hide_password=False)
    root, quiet = logging.getLogger(), logging.NullHandler()
    root.addHandler(quiet)  # without a handler Optuna's Alembic script would reconfigure the program's logging
    try:
        RDBStorage(_escape(url), skip_compatibility_check=True, skip_table_creation=True).upgrade()
    finally:
        root.removeHandler(quiet)


def _rdb_storage(engine: Engine) -> RDBStorage:
    """Optuna's storage on our connections; the URL that it keeps, and would pickle, has no password."""
    storage = RDBStorage(
        _escape(engine.url.set(password=None).render_as_string()),
        engine_kwargs={
            "creator": connector(engine.url),
            "poolclass": QueuePool,
            "pool_size": _POOL_SIZE,
            "pool_pre_ping": False,  # a call that a lost connection broke is repeated
        },
        skip_table_creation=True,
        skip_compatibility_check=True,
    )
    set_up_transactions(storage.engine)
    return storage


def _escape(url: str) -> str:
    """Optuna formats its URL as a template."""
    return url.replace("{", "{{").replace("}", "}}")


class _RetryingStorage:
    """Optuna's database storage; each call is repeated while the database cannot be used.

    It is wrapped by `_CachedStorage`, which calls nothing else. Most calls can simply be repeated. The others name how
    to recognise that a call whose answer was lost took effect.
    """

    def __init__(self, storage: RDBStorage, policy: RetryPolicy) -> None:
        self._storage = storage
        self._policy = policy
        self._writes = _Writes(storage.engine.dialect.name)
        self._one_statement = one_statement(storage.engine)
        self._new_trial: FrozenTrial | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a database storage cannot be pickled: it would carry the password; open one where it is used")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        if not callable(found):
            return found
        use = self._write if name in _WRITES else self._read
        return lambda *args, **kwargs: use(functools.partial(found, *args, **kwargs))

    def _read(self, function: Callable[[], T]) -> T:
        return call(function, self._policy, errors=(SQLAlchemyError, OSError, StorageInternalError))

    def _write(self, function: Callable[[], T], *, find: Callable[[], T | None] = lambda: None) -> T:
        """Call until it succeeds.

        Args:
            find: what a call whose answer was lost has returned; None where it did not take effect.
        """
        self._new_trial = None
        is_unknown = False

        def attempt() -> T:
            if is_unknown and (found := find()) is not None:
                return found
            with immediate():
                return function()

        def note(error: BaseException) -> None:
            nonlocal is_unknown
            is_unknown = is_unknown or may_have_committed(error)

        return call(attempt, self._policy, errors=(SQLAlchemyError, OSError, StorageInternalError), on_retry=note)

    def _insert(self, statement: Any, trial_id: int, content: dict[str, Any]) -> bool:
        """Whether a row of the trial was written; the statement may be repeated."""
        row = {"b_trial_id": trial_id, **{f"b_{name}": value for name, value in content.items()}}

        def attempt() -> bool:
            with self._one_statement.begin() as connection:
                return connection.execute(statement, row, execution_options=_COUNTED).rowcount > 0

        return self._write(attempt)

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        name = study_name or f"no-name-{uuid.uuid4()}"  # as Optuna names it

        def find() -> int | None:
            try:
                return int(self._storage.get_study_id_from_name(name))
            except KeyError:
                return None

        return self._write(lambda: int(self._storage.create_new_study(directions, name)), find=find)

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        """Marked by a nonce, so that a trial whose answer was lost is found again instead of made twice."""
        template = copy.deepcopy(template_trial) or create_trial(state=TrialState.RUNNING)
        nonce = uuid.uuid4().hex
        template.system_attrs = {**template.system_attrs, NONCE_KEY: nonce}
        has_content = template.params or template.user_attrs or template.intermediate_values or template.values

        def fill(made: Any) -> FrozenTrial:
            template._trial_id, template.number, template.datetime_start = made
            return template

        def create() -> FrozenTrial:
            if has_content or template.state.is_finished():  # ours never are
                return cast(FrozenTrial, self._storage._create_new_trial(study_id, template))
            with self._storage.engine.begin() as connection:
                return fill(_insert_trial(connection, study_id, template))

        def find() -> FrozenTrial | None:
            with self._storage.engine.connect() as connection:
                known = {"b_study": study_id, "b_nonce": json.dumps(nonce)}
                row = connection.execute(_FIND_BY_NONCE, known).one_or_none()
                return None if row is None else fill(row)

        made = self._write(create, find=find)
        self._new_trial = copy.deepcopy(made)
        return made

    def _set_trial_param(
        self, trial_id: int, name: str, value: float, distribution: BaseDistribution, known: BaseDistribution | None
    ) -> None:
        if known is not None:
            check_distribution_compatibility(known, distribution)
            content = {
                "param_name": name,
                "param_value": value,
                "distribution_json": distribution_to_json(distribution),
            }
            if self._insert(self._writes.param, trial_id, content):
                return
        self._write(lambda: self._storage._set_trial_param(trial_id, name, value, distribution, known))

    def set_trial_intermediate_value(self, trial_id: int, step: int, value: float) -> None:
        stored, kind = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr(value)
        content = {"step": step, "intermediate_value": stored, "intermediate_value_type": kind}
        if not self._insert(self._writes.point, trial_id, content):
            self._write(lambda: self._storage.set_trial_intermediate_value(trial_id, step, value))

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        def find() -> bool | None:
            return True if self._storage.get_trial(trial_id).state == state else None

        def end() -> bool:
            with self._storage.engine.begin() as connection:
                return self._writes.end(connection, trial_id, state, values)

        if state.is_finished() and self._write(end, find=find):
            return True
        return self._write(lambda: bool(self._storage.set_trial_state_values(trial_id, state, values)), find=find)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """The trial. One that was just made need not be read: Optuna asks for it right after making it."""
        new, self._new_trial = self._new_trial, None
        if new is not None and new._trial_id == trial_id:
            return new
        return self._read(lambda: cast(FrozenTrial, self._storage.get_trial(trial_id)))


def _insert_trial(connection: Connection, study_id: int, template: FrozenTrial) -> tuple[int, int, datetime | None]:
    """A RUNNING or WAITING trial with the template's system attributes: its id, number and start."""
    if connection.execute(_LOCK_STUDY, {"b_study": study_id}).first() is None:
        raise KeyError(f"there is no Optuna study with the id {study_id}")
    start = datetime.now() if template.state is TrialState.RUNNING else None  # as Optuna's: local, without a zone
    row = {"b_study": study_id, "b_state": template.state, "b_start": start}
    trial_id, number = connection.execute(_NEW_TRIAL, row).one()
    rows = [
        {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)}
        for key, value in template.system_attrs.items()
    ]
    connection.execute(insert(_ATTRIBUTES), rows)
    return trial_id, number, start


class _Writes:
    """The most frequent writes to a trial, as statements of one dialect, built once.

    `param` and `point` write nothing where the trial has ended. Optuna's own methods, which raise the error that is
    due, are then called.
    """

    def __init__(self, dialect: str) -> None:
        insert_into = insert_for(dialect)

        def into_open_trial(table: Table, *columns: str) -> Any:
            content = (bindparam(f"b_{name}", type_=table.c[name].type) for name in ("trial_id", *columns))
            return insert_into(table).from_select(["trial_id", *columns], select(*content).where(_TRIAL_IS_OPEN))

        def or_replace(statement: Any, key: str, *columns: str) -> Any:
            new = {name: statement.excluded[name] for name in columns}
            return statement.on_conflict_do_update(index_elements=["trial_id", key], set_=new)

        self.param = into_open_trial(_PARAMS, "param_name", "param_value", "distribution_json").on_conflict_do_nothing()
        point = ("intermediate_value", "intermediate_value_type")
        self.point = or_replace(into_open_trial(_POINTS, "step", *point), "step", *point)
        self._value = or_replace(insert_into(_VALUES), "objective", "value", "value_type")

    def end(self, connection: Connection, trial_id: int, state: TrialState, values: Sequence[float] | None) -> bool:
        """End the trial with its values; False where it has ended."""
        row = {"b_trial": trial_id, "b_state": state, "b_end": datetime.now()}
        if not connection.execute(_END, row).rowcount:
            return False
        for objective, value in enumerate(values or ()):
            stored, kind = models.TrialValueModel.value_to_stored_repr(value)
            content = {"trial_id": trial_id, "objective": objective, "value": stored, "value_type": kind}
            connection.execute(self._value, content)
        return True
