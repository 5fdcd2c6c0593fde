"""Access tokens: made, looked up, listed, revoked.

A token is 256 random bits, so its plain SHA-256 is stored. Slow hashes (scrypt, argon2) protect secrets that can be
guessed, and would slow every request. The hash is looked up, so that the time it takes reveals nothing about the token.
The token is shown once, when it is made, and is stored nowhere.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from admeta.client.models import ErrorView, NewTokenView, TokenView
from search.states import Scope
from service.database import idempotency
from service.database.engine import reading, writing
from service.database.errors import TokenNotFoundError
from service.database.idempotency import Answer, IdempotencyKey
from service.database.models import AccessToken
from service.database.retry import REQUEST, is_transient, retried

PREFIX = "adm_"
_N_BYTES = 32
_SHOWN = len(PREFIX) + 4
_USE_NOTED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True)
class Bearer:
    """Who sent a request, by its token."""

    id: str
    name: str
    scope: Scope


@retried(REQUEST)
@idempotency.repeated_on_conflict
def create_token(
    engine: Engine, *, name: str, scope: Scope, lifetime: timedelta | None = None, key: IdempotencyKey | None = None
) -> NewTokenView:
    """Make a token.

    Args:
        name: what it is for, or who has it; need not be unique.
        lifetime: how long it works; None: until it is revoked.
        key: the request's Idempotency-Key, if it has one.

    Returns:
        The token with its description. Only this answer has it: a repeated request gets 409.

    Raises:
        AnsweredBeforeError, KeyReusedError: see `service.database.idempotency`.
    """
    token = PREFIX + secrets.token_urlsafe(_N_BYTES)
    row = _row(token, name=name, scope=scope, lifetime=lifetime)
    view = NewTokenView(**row.columns(), active=True, token=token)
    with writing(engine) as session:
        idempotency.check(session, key)
        session.add(row)
        idempotency.keep(session, key, _answer_again(view))
    return view


def _row(token: str, *, name: str, scope: Scope, lifetime: timedelta | None = None) -> AccessToken:
    now = datetime.now(UTC)
    return AccessToken(
        id=secrets.token_hex(6),
        name=name,
        scope=scope.value,
        prefix=token[:_SHOWN],
        digest=digest(token),
        created_at=now,
        expires_at=None if lifetime is None else now + lifetime,
        last_used_at=None,
        revoked_at=None,
    )


def _answer_again(view: NewTokenView) -> Answer:
    """The answer to the same request sent again, which has no token."""
    error = ErrorView(
        error="token_made_before",
        detail=f"this request has made the token '{view.name}' (id {view.id}) before; a token is shown only once.",
        hint=f"If that answer was lost, revoke the token (DELETE /v1/tokens/{view.id}) and send the request with a new "
        "Idempotency-Key.",
    )
    return Answer(status=409, location=None, body=error.model_dump_json(exclude_defaults=True))


@retried(REQUEST)
def adopt_admin(engine: Engine, token: str) -> None:
    """Accept a token that was made elsewhere, such as a cluster's secret, as an admin's.

    Nothing changes where the token is known; one that was revoked stays revoked.

    Raises:
        ValueError: the token is so short that it could be guessed.
    """
    if len(token) < _N_BYTES:
        raise ValueError(f"an admin token of {len(token)} characters can be guessed; it must have {_N_BYTES} or more")
    row = _row(token, name="from the service's settings", scope=Scope.ADMIN)
    with writing(engine) as session:
        if session.execute(select(AccessToken.id).where(AccessToken.digest == row.digest)).first() is None:
            session.add(row)


@retried(REQUEST)
def find_bearer(engine: Engine, token: str) -> Bearer | None:
    """Whose token this is; None where it is unknown, revoked or expired. Records the use, at most once a minute."""
    now = datetime.now(UTC)
    with reading(engine) as session:
        row = session.execute(select(AccessToken).where(AccessToken.digest == digest(token))).scalar_one_or_none()
    if row is None or not row.active:
        return None
    if row.last_used_at is None or now - row.last_used_at > _USE_NOTED_EVERY:
        try:
            with writing(engine) as session:
                session.execute(update(AccessToken).where(AccessToken.id == row.id).values(last_used_at=now))
        except (SQLAlchemyError, OSError) as error:  # a full disk, for example, must not refuse readers
            if not is_transient(error):
                raise
    return Bearer(id=row.id, name=row.name, scope=Scope(row.scope))


@retried(REQUEST)
def active_tokens(engine: Engine, ids: Collection[str]) -> set[str]:
    """The ids of those tokens that are neither revoked nor expired."""
    with reading(engine) as session:
        rows = session.execute(select(AccessToken).where(AccessToken.id.in_(ids))).scalars()
        return {row.id for row in rows if row.active}


@retried(REQUEST)
def list_tokens(engine: Engine) -> list[TokenView]:
    """All tokens, newest first, also those that no longer work."""
    query = select(AccessToken).order_by(AccessToken.created_at.desc(), AccessToken.id)
    with reading(engine) as session:
        return [TokenView.model_validate(row) for row in session.execute(query).scalars()]


@retried(REQUEST)
def revoke_token(engine: Engine, token_id: str) -> TokenView:
    """Revoke a token at once; one that was revoked stays as it is.

    Raises:
        TokenNotFoundError: no token has this id.
    """
    with writing(engine) as session:
        row = session.get(AccessToken, token_id, with_for_update=True)
        if row is None:
            raise TokenNotFoundError(
                f"no token has the id {token_id!r}.", hint="`admeta token list` and GET /v1/tokens list the ids."
            )
        row.revoked_at = row.revoked_at or datetime.now(UTC)
        return TokenView.model_validate(row)


@retried(REQUEST)
def has_admin(engine: Engine) -> bool:
    """Whether there is an admin token that works."""
    query = select(AccessToken.id).where(
        AccessToken.scope == Scope.ADMIN.value,
        AccessToken.revoked_at.is_(None),
        or_(AccessToken.expires_at.is_(None), AccessToken.expires_at > datetime.now(UTC)),
    )
    with reading(engine) as session:
        return session.execute(query.limit(1)).first() is not None


def digest(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
