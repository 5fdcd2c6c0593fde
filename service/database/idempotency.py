"""Requests that take effect once, however often they are sent: the answers given under an Idempotency-Key, for a day.

An answer is written in the transaction of the change that it reports: either both are stored or neither is. It must not
contain a secret. Only a hash of the key is stored.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import ParamSpec, TypeVar

from sqlalchemy import ColumnElement, Engine, delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.database.engine import reading, writing
from service.database.errors import KeyReusedError
from service.database.models import AnsweredRequest
from service.database.retry import REQUEST, retried

P = ParamSpec("P")
T = TypeVar("T")
KEEP = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True)
class IdempotencyKey:
    """The key of a request that takes effect once.

    Attributes:
        caller: id of the request's access token; "" on an open service. Each caller has keys of their own.
        key: the Idempotency-Key.
        request_sha256: hash of what is requested.
    """

    caller: str
    key: str = field(repr=False)
    request_sha256: str

    @property
    def key_sha256(self) -> str:
        return hashlib.sha256(self.key.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer as it is sent: its status, the address of what was made, and its JSON body."""

    status: int
    location: str | None
    body: str


class AnsweredBeforeError(Exception):
    """Not a fault: the request was carried out before; `answer` is sent again."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__("the request was answered before")


def repeated_on_conflict(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: call a second time where another request has used a name or a key since the function looked for it."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except IntegrityError:
            return function(*args, **kwargs)

    return wrapper


@retried(REQUEST)
def look_up(engine: Engine, key: IdempotencyKey) -> None:
    """Return where the request is new.

    Raises:
        AnsweredBeforeError: the request was carried out before.
        KeyReusedError: the key came with another request.
    """
    with reading(engine) as session:
        _look_up(session, key)


def check(session: Session, key: IdempotencyKey | None) -> None:
    """`look_up` in the transaction that carries the request out. A request without a key is always new."""
    if key is not None:
        old = datetime.now(UTC) - KEEP
        session.execute(delete(AnsweredRequest).where(*_is(key), AnsweredRequest.created_at <= old))
        _look_up(session, key)


def keep(session: Session, key: IdempotencyKey | None, answer: Answer) -> None:
    """Store the answer when the transaction commits."""
    if key is not None:
        row = AnsweredRequest(
            caller=key.caller,
            key_sha256=key.key_sha256,
            request_sha256=key.request_sha256,
            answer=json.dumps(asdict(answer)),
            created_at=datetime.now(UTC),
        )
        session.add(row)


@retried(REQUEST)
def forget(engine: Engine) -> None:
    """Delete the answers that are older than a day."""
    with writing(engine) as session:
        session.execute(delete(AnsweredRequest).where(AnsweredRequest.created_at <= datetime.now(UTC) - KEEP))


def _look_up(session: Session, key: IdempotencyKey) -> None:
    recent = AnsweredRequest.created_at > datetime.now(UTC) - KEEP
    row = session.execute(select(AnsweredRequest).where(*_is(key), recent)).scalar_one_or_none()
    if row is None:
        return
    if row.request_sha256 != key.request_sha256:
        raise KeyReusedError(
            f"Idempotency-Key '{key.key}' came with another request at {row.created_at:%Y-%m-%d %H:%M:%S} UTC; "
            "a key belongs to one request.",
            hint="Send this request with a new key, such as a random UUID; to repeat the other one, send it unchanged.",
        )
    raise AnsweredBeforeError(Answer(**json.loads(row.answer)))


def _is(key: IdempotencyKey) -> tuple[ColumnElement[bool], ...]:
    return AnsweredRequest.caller == key.caller, AnsweredRequest.key_sha256 == key.key_sha256
