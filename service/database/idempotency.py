"""Requests that take effect once, however often they are sent: the answers given under an Idempotency-Key.

Owns what is kept of them, for a day. An answer is written in the transaction that makes what it tells of, so there is
either both or neither. It is sealed with the key, of which only a hash is kept: a new token's answer has the token,
which nobody must find in the database.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Engine, delete, select
from sqlalchemy.orm import Session

from service.database.engine import reading, writing
from service.database.errors import KeyReusedError
from service.database.models import AnsweredRequest
from service.database.retry import REQUEST, retried

KEEP = timedelta(hours=24)
_N_NONCE = 16


@dataclass(frozen=True, kw_only=True)
class Once:
    """A request that is to take effect once.

    Attributes:
        caller: id of the access token that came with it; "" on an open service. Keys of different callers never meet.
        key: its Idempotency-Key.
        request_sha256: hash of what it asks for.
    """

    caller: str
    key: str = field(repr=False)
    request_sha256: str

    @property
    def key_sha256(self) -> str:
        return hashlib.sha256(self.key.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer as it went out: its status, where what was made is, and its JSON body."""

    status: int
    location: str | None
    body: str = field(repr=False)


class AnsweredBeforeError(Exception):
    """Not a fault: the request was carried out before, and this was the answer."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__("the request was answered before")


@retried(REQUEST)
def look_up(engine: Engine, once: Once) -> None:
    """Return where the request is new.

    Raises:
        AnsweredBeforeError: it is not; with the answer.
        KeyReusedError: the key came with another request.
    """
    with reading(engine) as session:
        _look_up(session, once)


def check(session: Session, once: Once | None) -> None:
    """`look_up` in the transaction that is to carry the request out. None is always new."""
    if once is not None:
        old = datetime.now(UTC) - KEEP
        session.execute(delete(AnsweredRequest).where(*_is(once), AnsweredRequest.created_at <= old))
        _look_up(session, once)


def keep(session: Session, once: Once | None, answer: Answer) -> None:
    """Keep the answer; it is there when the transaction commits."""
    if once is not None:
        row = AnsweredRequest(
            caller=once.caller,
            key_sha256=once.key_sha256,
            request_sha256=once.request_sha256,
            sealed=_seal(json.dumps(asdict(answer)), once.key),
            created_at=datetime.now(UTC),
        )
        session.add(row)


@retried(REQUEST)
def forget(engine: Engine) -> None:
    """Drop the answers whose time is over."""
    with writing(engine) as session:
        session.execute(delete(AnsweredRequest).where(AnsweredRequest.created_at <= datetime.now(UTC) - KEEP))


def _look_up(session: Session, once: Once) -> None:
    recent = AnsweredRequest.created_at > datetime.now(UTC) - KEEP
    row = session.execute(select(AnsweredRequest).where(*_is(once), recent)).scalar_one_or_none()
    if row is None:
        return
    if row.request_sha256 != once.request_sha256:
        raise KeyReusedError(
            f"Idempotency-Key '{once.key}' came with another request at {row.created_at:%Y-%m-%d %H:%M:%S} UTC; "
            "a key belongs to one request.",
            hint="Send this request with a new key, a random UUID say; to repeat the other one, send it unchanged.",
        )
    raise AnsweredBeforeError(Answer(**json.loads(_unseal(row.sealed, once.key))))


def _is(once: Once) -> tuple[ColumnElement[bool], ...]:
    return AnsweredRequest.caller == once.caller, AnsweredRequest.key_sha256 == once.key_sha256


def _seal(text: str, key: str) -> str:
    nonce = secrets.token_bytes(_N_NONCE)
    return base64.b64encode(nonce + _mask(text.encode(), key, nonce)).decode()


def _unseal(sealed: str, key: str) -> str:
    raw = base64.b64decode(sealed)
    return _mask(raw[_N_NONCE:], key, raw[:_N_NONCE]).decode()


def _mask(content: bytes, key: str, nonce: bytes) -> bytes:
    """The content under a key stream that is used once (SHAKE-256 of nonce and key); the same again takes it off."""
    stream = hashlib.shake_256(nonce + key.encode()).digest(len(content))
    n = len(content)
    return (int.from_bytes(content) ^ int.from_bytes(stream)).to_bytes(n)
