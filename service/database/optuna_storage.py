"""Optuna's storage in our database: same connections' set-up, no password in it, and patient when the database is away.

Optuna's tables are made once, by `service.database.schema.prepare`; a storage here expects them. The single writer of
a search is its study's driver, so a call that failed half-way may be repeated here: what it may have left behind is
looked for first.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn, cast

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import DuplicatedStudyError, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage, _CachedStorage
from optuna.storages._rdb import models as optuna_models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from service.database.engine import connector, immediate, one_statement, reading, set_up_transactions
from service.database.errors import DatabaseVersionError
from service.database.optuna_writes import Writes, new_trial
from service.database.retry import RetryPolicy, call, may_have_committed

NONCE_KEY = "admeta:nonce"
_POOL_SIZE = 5
_WRITES = frozenset(
    {
        "_set_trial_param",
        "delete_study",
        "set_study_system_attr",
        "set_study_user_attr",
        "set_trial_intermediate_value",
        "set_trial_system_attr",
        "set_trial_user_attr",
    }
)


def optuna_storage(engine: Engine, policy: RetryPolicy) -> optuna.storages.BaseStorage:
    """Optuna's cached storage on the engine's database. The heartbeat is off: the driver's lease stands for it.

    Raises:
        DatabaseUnavailableError: the database did not answer within the policy's time.
        RuntimeError: Optuna's tables are missing or of another version; run `prepare` first.
    """
    storage = call(lambda: _rdb_storage(engine), policy, errors=(SQLAlchemyError, StorageInternalError))
    return _CachedStorage(_PatientStorage(storage, policy))


def optuna_study_id(engine: Engine, name: str) -> int | None:
    """The number that Optuna gave the study of this name; None where no trial of it was asked for yet."""
    model = optuna_models.StudyModel
    with reading(engine) as session:
        return session.execute(select(model.study_id).where(model.study_name == name)).scalar_one_or_none()


def upgrade_optuna_tables(engine: Engine) -> None:
    """Create Optuna's tables, or bring them to the version of the Optuna installed.

    Raises:
        DatabaseVersionError: they are of a newer Optuna.
    """
    optuna_models.BaseModel.metadata.create_all(engine)
    storage = _rdb_storage(engine)
    try:
        found, needed = storage.get_current_version(), storage.get_head_version()
        known = storage.get_all_versions()
    finally:
        storage.engine.dispose()
    if found == needed:
        return
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
    """Optuna's storage on connections of ours; the URL that it keeps, and would pickle, has no password."""
    storage = RDBStorage(
        _escape(engine.url.set(password=None).render_as_string()),
        engine_kwargs={
            "creator": connector(engine.url),
            "poolclass": QueuePool,
            "pool_size": _POOL_SIZE,
            "pool_pre_ping": False,  # each call is repeated where a lost connection broke it
        },
        skip_table_creation=True,
        skip_compatibility_check=True,
    )
    set_up_transactions(storage.engine)
    return storage


def _escape(url: str) -> str:
    """Optuna formats its URL as a template."""
    return url.replace("{", "{{").replace("}", "}}")


class _PatientStorage:
    """Optuna's database storage, each call repeated while the database is away.

    Stands behind `_CachedStorage`, which asks for nothing else. Most calls can simply be repeated; the three that
    cannot are written out.
    """

    def __init__(self, storage: RDBStorage, policy: RetryPolicy) -> None:
        self._storage = storage
        self._policy = policy
        self._writes = Writes(storage.engine.dialect.name)
        self._one_statement = one_statement(storage.engine)
        self._newborn: FrozenTrial | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a database storage cannot be pickled: it would carry the password; open one where it is used")

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)
        if not callable(method):
            return method
        return functools.partial(self._call, method, writes=name in _WRITES)

    def _call(
        self,
        method: Callable[..., Any],
        *args: Any,
        writes: bool,
        on_retry: Callable[[BaseException], None] | None = None,
        **kwargs: Any,
    ) -> Any:
        if writes:
            self._newborn = None

        def attempt() -> Any:
            with immediate() if writes else nullcontext():
                return method(*args, **kwargs)

        return call(attempt, self._policy, errors=(SQLAlchemyError, StorageInternalError), on_retry=on_retry)

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        broken = _Broken()
        try:
            study_id = self._call(
                self._storage.create_new_study, directions, study_name, writes=True, on_retry=broken.note
            )
        except DuplicatedStudyError:
            if not broken or study_name is None:
                raise
            study_id = self._call(self._storage.get_study_id_from_name, study_name, writes=False)
        return int(study_id)

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        """Marked by a nonce, so that a trial whose answer was lost is found again instead of made twice."""
        template = copy.deepcopy(template_trial) or create_trial(state=TrialState.RUNNING)
        nonce = uuid.uuid4().hex
        template.system_attrs = {**template.system_attrs, NONCE_KEY: nonce}
        broken = _Broken()

        def attempt() -> FrozenTrial:
            if broken or not _is_plain(template):
                self._create_or_find(study_id, template, nonce, look=bool(broken))
                return template
            with self._storage.engine.begin() as connection:
                made = new_trial(connection, study_id, template.system_attrs)
            if made is None:
                raise KeyError(f"there is no Optuna study with the id {study_id}")
            template._trial_id, template.number, template.datetime_start = made
            return template

        born = cast(FrozenTrial, self._call(attempt, writes=True, on_retry=broken.note))
        self._newborn = copy.deepcopy(born)
        return born

    def _create_or_find(self, study_id: int, template: FrozenTrial, nonce: str, *, look: bool) -> None:
        with _create_scoped_session(self._storage.scoped_session) as session:
            row = _find_by_nonce(session, study_id, nonce) if look else None
            if row is None:
                optuna_models.StudyModel.find_or_raise_by_id(study_id, session, for_update=True)
                row = self._storage._get_prepared_new_trial(study_id, template, session)
            template.number, template._trial_id = row.number, row.trial_id
            template.datetime_start = row.datetime_start

    def _set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
        previous_distribution: BaseDistribution | None,
    ) -> None:
        done = previous_distribution is not None and self._write(
            lambda connection: self._writes.param(
                connection, trial_id, param_name, param_value_internal, distribution, previous_distribution
            ),
            engine=self._one_statement,
        )
        if not done:
            known = (trial_id, param_name, param_value_internal, distribution, previous_distribution)
            self._call(self._storage._set_trial_param, *known, writes=True)

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        done = self._write(
            lambda connection: self._writes.point(connection, trial_id, step, intermediate_value),
            engine=self._one_statement,
        )
        if not done:
            self._call(self._storage.set_trial_intermediate_value, trial_id, step, intermediate_value, writes=True)

    def _write(
        self,
        write: Callable[[Connection], bool],
        *,
        engine: Engine | None = None,
        on_retry: Callable[[BaseException], None] | None = None,
    ) -> bool:
        """Whether a write of few statements was done; it may be repeated."""

        def attempt() -> bool:
            with (engine or self._storage.engine).begin() as connection:
                return write(connection)

        return bool(self._call(attempt, writes=True, on_retry=on_retry))

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """A trial made just now is what was written, and need not be read: Optuna asks right after it made one."""
        newborn, self._newborn = self._newborn, None
        if newborn is not None and newborn._trial_id == trial_id:
            return newborn
        return cast(FrozenTrial, self._call(self._storage.get_trial, trial_id, writes=False))

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        broken = _Broken()
        if state.is_finished() and self._write(
            lambda connection: self._writes.end(connection, trial_id, state, values), on_retry=broken.note
        ):
            return True
        try:
            done = self._call(
                self._storage.set_trial_state_values, trial_id, state, values, writes=True, on_retry=broken.note
            )
        except UpdateFinishedTrialError:
            if not broken or self.get_trial(trial_id).state != state:
                raise
            return True
        if not done and broken and state == TrialState.RUNNING:
            return bool(self.get_trial(trial_id).state == TrialState.RUNNING)
        return bool(done)


class _Broken:
    """Whether a call was cut off after it may have taken effect."""

    def __init__(self) -> None:
        self._seen = False

    def __bool__(self) -> bool:
        return self._seen

    def note(self, error: BaseException) -> None:
        self._seen = self._seen or may_have_committed(error)


def _is_plain(template: FrozenTrial) -> bool:
    """Whether the new trial is a running one without content."""
    return template.state is TrialState.RUNNING and not (
        template.params or template.user_attrs or template.intermediate_values or template.values
    )


def _find_by_nonce(session: Session, study_id: int, nonce: str) -> Any:
    attribute = optuna_models.TrialSystemAttributeModel
    trial = optuna_models.TrialModel
    query = (
        select(trial)
        .join(attribute, attribute.trial_id == trial.trial_id)
        .where(trial.study_id == study_id, attribute.key == NONCE_KEY, attribute.value_json == json.dumps(nonce))
    )
    return session.execute(query).scalar_one_or_none()
