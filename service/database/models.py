"""Our tables. Optuna's (`studies`, `trials`, …) live in the same database, so ours are prefixed `admeta_`.

    admeta_studies ─< admeta_searches ─< admeta_runs ─< admeta_attempts
                                                     └< admeta_points
    admeta_events, admeta_tokens, admeta_answers, admeta_card_facts

A row has the attribute names of the views and records that are made from it, so that nobody copies them one by one.
A change of a column needs a revision under `migrations/versions`; a test compares the two.

The column types hide what SQLite and PostgreSQL do differently: times, numbers, JSON and text. Whatever is written
through them can be written to both databases and reads back the same from both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    DateTime,
    Dialect,
    Double,
    Enum,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    and_,
    inspect,
    literal_column,
    text,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    composite,
    declared_attr,
    foreign,
    mapped_column,
    relationship,
    remote,
    validates,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

from admeta.spaces import split_recipe
from search.states import AttemptState, Direction, FailureKind, RunState, Stage, StudyState
from tasks.engine.protocol import Cost

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only INTEGER PRIMARY KEY columns
Count = BigInteger()

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class UtcDateTime(TypeDecorator[datetime]):
    """A time with its zone, always UTC. SQLite has no zones and stores the bare UTC time."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"time {value} has no zone; pass datetime.now(UTC)")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class FiniteFloat(TypeDecorator[float]):
    """A double; NaN and infinities are stored as NULL, so that none is ever the best or breaks a mean."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        return None if value is None or not math.isfinite(value) else float(value)


class PlainText(TypeDecorator[str]):
    """Text from outside, such as error messages. What a database refuses (NUL, lone surrogates) becomes U+FFFD."""

    impl: type[String] = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return value.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


class Name(PlainText):
    """A short text. Searching for one that could not be stored finds nothing and is not an error."""

    impl = String
    cache_ok = True


class JsonText(TypeDecorator[Any]):
    """Strict JSON as text: keys keep their order (JSONB would sort them, and a space's order is a fact)."""

    impl = Text
    cache_ok = True

    def coerce_compared_value(self, op: Any, value: Any) -> TypeEngine[Any]:
        return self

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value, allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


class MetricsText(TypeDecorator[Mapping[str, float]]):
    """Metrics by name as strict JSON; NaN and infinities go in as strings and come back as floats."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Mapping[str, float] | None, dialect: Dialect) -> str:
        return json.dumps({name: _encode(number) for name, number in (value or {}).items()}, allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> dict[str, float]:
        return {} if value is None else {name: _decode(number) for name, number in json.loads(value).items()}


def _encode(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else ("Infinity" if number > 0 else "-Infinity")


def _decode(number: float | str) -> float:
    return _NON_FINITE[number] if isinstance(number, str) else number


Record = TypeVar("Record")
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


_UNFINISHED = text("state IN ('WAITING', 'RUNNING')")
_CONFIRMS = text("stage = 'confirm'")
RUN_IS_UNFINISHED = text("admeta_runs.state IN ('WAITING', 'RUNNING')")
CONFIRM: ColumnElement[str] = literal_column("'confirm'")
"""Written out, because the indexes over some runs only serve a query that says the same words."""


def _enum(kind: type[StrEnum], *, length: int = 16) -> Enum:
    """An enum stored by its value in a plain string column: a new member needs no migration."""
    return Enum(kind, native_enum=False, length=length, values_callable=lambda members: [m.value for m in members])


class Base(DeclarativeBase):
    """Base of our tables. Relationships are not loaded unless a query asks for them."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)

    def columns(self) -> dict[str, Any]:
        """The columns that are loaded, by name: what views and records take what they need from."""
        names = (attribute.key for attribute in inspect(type(self)).column_attrs)
        return {name: self.__dict__[name] for name in names if name in self.__dict__}

    def record(self, kind: type[Record], **others: Any) -> Record:
        """The dataclass whose fields are this row's attributes, but for `others`."""
        names = [field.name for field in fields(kind) if field.name not in others]  # type: ignore[arg-type]
        return kind(**{name: getattr(self, name) for name in names}, **others)


class Costed:
    """The columns of a `Cost`, and the cost that they make."""

    train_s: Mapped[float] = mapped_column(FiniteFloat, default=0.0)
    eval_s: Mapped[float] = mapped_column(FiniteFloat, default=0.0)
    optimizer_s: Mapped[float] = mapped_column(FiniteFloat, default=0.0)
    data_s: Mapped[float] = mapped_column(FiniteFloat, default=0.0)
    gpu_s: Mapped[float] = mapped_column(FiniteFloat, default=0.0)
    peak_memory_bytes: Mapped[int] = mapped_column(Count, default=0)

    @declared_attr
    def cost(cls) -> Mapped[Cost]:  # noqa: N805  (SQLAlchemy hands over the class)
        return composite(Cost, *(field.name for field in fields(Cost)))


class Timed:
    """Rows with a start and an end, which is never before the start: a machine's clock may be set back in between."""

    started_at: Mapped[datetime | None]

    @validates("finished_at")
    def _end_after_start(self, _: str, at: datetime | None) -> datetime | None:
        return at if at is None or self.started_at is None else max(at, self.started_at)


class Study(Timed, Base):
    """A study and its driver. `definition` is the resolved definition; its hash detects repetitions.

    `origin` is what its training starts from, a file or STUDY/LABEL/TRIAL; None: fresh weights. `recipe` is the hash of
    what makes results comparable (search.recipe); None where an earlier release's definition cannot be read. It has
    `data_fingerprint`, that of the data's files, where a worker has found it (search.placement). `extensions` has what
    `service.database.extending.extend_study` kept of each time that it was extended after its end, the last one last.
    `run_cpus` and `run_gpus` are what each of its runs holds, as its driver told other studies' drivers last.
    """

    __tablename__ = "admeta_studies"
    __table_args__ = (
        Index(None, "created_at", "id"),
        Index(None, "state", "priority", "created_at"),
        Index(None, "task", "metric"),
    )

    id: Mapped[str] = mapped_column(Name(12), primary_key=True)
    name: Mapped[str] = mapped_column(Name(100), unique=True)
    task: Mapped[str] = mapped_column(Name(100))
    model: Mapped[str | None] = mapped_column(Name(200))
    metric: Mapped[str] = mapped_column(Name(100))
    direction: Mapped[Direction] = mapped_column(_enum(Direction, length=8))
    origin: Mapped[str | None] = mapped_column(PlainText)
    recipe: Mapped[str | None] = mapped_column(Name(64))
    epochs: Mapped[int | None]
    data_fingerprint: Mapped[str | None] = mapped_column(Name(64))
    definition: Mapped[dict[str, Any]] = mapped_column(JsonText)
    definition_sha256: Mapped[str] = mapped_column(Name(64))
    priority: Mapped[int]
    notes: Mapped[str] = mapped_column(PlainText, default="")
    tags: Mapped[list[str]] = mapped_column(JsonText, default=list)
    state: Mapped[StudyState] = mapped_column(_enum(StudyState))
    reason: Mapped[str | None] = mapped_column(PlainText)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    extensions: Mapped[list[dict[str, Any]]] = mapped_column(JsonText, default=list)
    lease_owner: Mapped[str | None] = mapped_column(Name(200))
    lease_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    run_cpus: Mapped[float | None] = mapped_column(FiniteFloat)
    run_gpus: Mapped[float | None] = mapped_column(FiniteFloat)
    searches: Mapped[list[Search]] = relationship(back_populates="study", order_by="Search.position", lazy="raise")

    @property
    def n_extensions(self) -> int:
        """How often it was extended."""
        return len(self.extensions)

    @property
    def n_seen(self) -> int:
        """Extensions before which verdicts could be seen."""
        return sum(one["verdicts_seen"] for one in self.extensions)

    @property
    def ended_s(self) -> float:
        """Seconds for which it had ended before it was extended."""
        ends = [(one["ended_at"], one["at"]) for one in self.extensions if one["ended_at"] is not None]
        return sum((datetime.fromisoformat(at) - datetime.fromisoformat(end)).total_seconds() for end, at in ends)


class Search(Base):
    """One optimizer's search. What it will run (`n_trials`, `n_confirm_runs`) follows from the definition."""

    __tablename__ = "admeta_searches"
    __table_args__ = (UniqueConstraint("study_id", "label"), Index(None, "optimizer", "study_id"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("admeta_studies.id", ondelete="CASCADE"))
    label: Mapped[str] = mapped_column(Name(100))
    position: Mapped[int]
    optimizer: Mapped[str] = mapped_column(Name(100))
    optuna_name: Mapped[str] = mapped_column(Name(250), unique=True)
    fixed: Mapped[dict[str, Any]] = mapped_column(JsonText)
    n_trials: Mapped[int]
    n_confirm_runs: Mapped[int]
    study: Mapped[Study] = relationship(back_populates="searches", lazy="raise_on_sql")


class Run(Costed, Timed, Base):
    """One training execution of a trial with one seed. A trial of Optuna is its run of stage `search`."""

    __tablename__ = "admeta_runs"
    __table_args__ = (
        UniqueConstraint("search_id", "trial_number", "stage", "seed"),
        Index(None, "search_id", "stage", "state", "value"),
        Index("ix_admeta_runs_unfinished", "search_id", sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED),
        Index(
            "ix_admeta_runs_confirm",
            *("search_id", "trial_number", "state", "value"),
            sqlite_where=_CONFIRMS,
            postgresql_where=_CONFIRMS,
        ),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    search_id: Mapped[int] = mapped_column(Id, ForeignKey("admeta_searches.id", ondelete="CASCADE"))
    trial_number: Mapped[int]
    stage: Mapped[Stage] = mapped_column(_enum(Stage))
    seed: Mapped[int] = mapped_column(Count)
    params: Mapped[dict[str, Any]] = mapped_column(JsonText)
    taken_from: Mapped[list[dict[str, Any]]] = mapped_column(JsonText, default=list)
    state: Mapped[RunState] = mapped_column(_enum(RunState))
    attempt: Mapped[int] = mapped_column(default=0)
    n_failures: Mapped[int] = mapped_column(default=0)
    epoch: Mapped[int] = mapped_column(default=0)
    n_epochs: Mapped[int] = mapped_column(default=0)
    step: Mapped[int] = mapped_column(Count, default=0)
    value: Mapped[float | None] = mapped_column(FiniteFloat)
    failure: Mapped[FailureKind | None] = mapped_column(_enum(FailureKind))
    error: Mapped[str | None] = mapped_column(PlainText)
    test_metrics: Mapped[dict[str, float]] = mapped_column(MetricsText, default=dict)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    search: Mapped[Search] = relationship(lazy="raise_on_sql")
    attempt_rows: Mapped[list[Attempt]] = relationship(order_by="Attempt.attempt", lazy="raise", viewonly=True)
    confirm_runs: Mapped[list[Run]] = relationship(
        primaryjoin=lambda: and_(
            Run.search_id == remote(foreign(Run.search_id)),
            Run.trial_number == remote(foreign(Run.trial_number)),
            remote(Run.stage) == CONFIRM,
        ),
        order_by=lambda: Run.seed,
        lazy="raise",
        viewonly=True,
    )
    """Of a search run: the other runs of its trial."""

    @property
    def number(self) -> int:
        """The trial's number; a trial is its run of stage `search`."""
        return self.trial_number

    @property
    def trial(self) -> int:
        """The number of the trial that it belongs to."""
        return self.trial_number

    @property
    def runs(self) -> list[Run]:
        """The runs of the trial: the search run first, then the confirm runs by seed."""
        return [self, *self.confirm_runs]

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """What was read of each attempt, first to last."""
        return [attempt.columns() for attempt in self.attempt_rows]

    @property
    def study(self) -> str:
        """The study's name."""
        return self.search.study.name

    @property
    def label(self) -> str:
        """The label of the search."""
        return self.search.label

    @property
    def optimizer(self) -> str:
        """The optimizer's name."""
        return self.search.optimizer

    @property
    def settings(self) -> dict[str, Any]:
        """What constructs the optimizer: what the study fixed, and what the sampler drew."""
        return split_recipe({**self.search.fixed, **self.params})[0]

    @property
    def training(self) -> dict[str, Any]:
        """What the trial sets of the study's task, by field."""
        return split_recipe({**self.search.fixed, **self.params})[1]


class Attempt(Base):
    """One start of a run on a worker. `owner` is the driver that started it."""

    __tablename__ = "admeta_attempts"

    run_id: Mapped[int] = mapped_column(Id, ForeignKey("admeta_runs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    owner: Mapped[str] = mapped_column(Name(200))
    state: Mapped[AttemptState] = mapped_column(_enum(AttemptState))
    node: Mapped[str | None] = mapped_column(PlainText)
    pid: Mapped[int | None] = mapped_column(Count)
    device: Mapped[str | None] = mapped_column(PlainText)
    environment: Mapped[dict[str, Any] | None] = mapped_column(JsonText)
    resumed_from_epoch: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(PlainText)
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class CurvePoint(Costed, Base):
    """One evaluation of a run, and what it cost since the evaluation before."""

    __tablename__ = "admeta_points"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  (SQLAlchemy's declaration; clustered by key)

    run_id: Mapped[int] = mapped_column(Id, ForeignKey("admeta_runs.id", ondelete="CASCADE"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    step: Mapped[int] = mapped_column(Count)
    value: Mapped[float | None] = mapped_column(FiniteFloat)
    metrics: Mapped[dict[str, float]] = mapped_column(MetricsText)
    lr: Mapped[float | None] = mapped_column(FiniteFloat)


class Event(Base):
    """Something that happened, for followers. Written by `service.database.events` alone, which orders the ids.

    No foreign keys: the events of a study remain when the study is deleted.
    """

    __tablename__ = "admeta_events"
    __table_args__ = (Index(None, "study_id", "id"), {"sqlite_autoincrement": True})  # no id is ever used twice

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    study_id: Mapped[str] = mapped_column(Name(12))
    kind: Mapped[str] = mapped_column(Name(32))
    data: Mapped[dict[str, Any]] = mapped_column(JsonText)


class AccessToken(Base):
    """A token by its SHA-256; the token itself is shown once, when it is created. See `service.database.tokens`."""

    __tablename__ = "admeta_tokens"

    id: Mapped[str] = mapped_column(Name(12), primary_key=True)
    name: Mapped[str] = mapped_column(Name(100))
    scope: Mapped[str] = mapped_column(Name(16))
    prefix: Mapped[str] = mapped_column(Name(16))
    digest: Mapped[str] = mapped_column(Name(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    @property
    def active(self) -> bool:
        """Whether it was neither revoked nor has expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > datetime.now(UTC))


class AnsweredRequest(Base):
    """The answer to a request that carried an Idempotency-Key. See `service.database.idempotency`."""

    __tablename__ = "admeta_answers"
    __table_args__ = (Index(None, "created_at"),)

    caller: Mapped[str] = mapped_column(Name(12), primary_key=True)
    key_sha256: Mapped[str] = mapped_column(Name(64), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(Name(64))
    answer: Mapped[str] = mapped_column(PlainText)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class FactsOfCard(Base):
    """What runs of a task found out about a kind of card; see `search.packing`.

    `task_shape` is the digest of what decides a run's memory and speed (`search.placement`), `card` what Ray calls the
    kind of card; empty where it knows none.
    """

    __tablename__ = "admeta_card_facts"

    task_shape: Mapped[str] = mapped_column(Name(64), primary_key=True)
    card: Mapped[str] = mapped_column(Name(100), primary_key=True)
    n_at_once: Mapped[int]
    is_settled: Mapped[bool]
    reason: Mapped[str] = mapped_column(PlainText)
    totals: Mapped[dict[str, float]] = mapped_column(MetricsText)
    memory_bytes: Mapped[int] = mapped_column(Count)
    card_bytes: Mapped[int] = mapped_column(Count)
    release: Mapped[str] = mapped_column(PlainText)
    found_at: Mapped[datetime] = mapped_column(UtcDateTime)
