"""Access tokens over HTTP, for admins: make, list, revoke. The first one is made by `admeta token create`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError

from search.states import Scope
from service.api.access import TOKENS_PATH
from service.api.body import read_json
from service.api.dependencies import Database
from service.api.errors import ApiError
from service.api.examples import TOKEN
from service.api.invalid import query_fields
from service.api.once import RequestedOnce
from service.api.openapi import json_body
from service.database import tokens
from service.models import ErrorView, NewTokenView, TokenRequest, TokenView

router = APIRouter(
    prefix=TOKENS_PATH,
    tags=["tokens"],
    responses={403: {"model": ErrorView, "description": "The scope is not admin, or the service uses no tokens."}},
)
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorView, "description": "The body is not a JSON object, or the Idempotency-Key is none."},
    409: {"model": ErrorView, "description": "The request was carried out before; the token is not shown again."},
    413: {"model": ErrorView, "description": "The body is too large."},
    415: {"model": ErrorView, "description": "The body is not sent as application/json."},
    422: {"model": ErrorView, "description": "A field breaks its rule; `fields` names field, value and rule."},
}


@router.post("", status_code=201, openapi_extra=json_body(TokenRequest, example=TOKEN), responses=_REFUSALS)
async def create_token(
    engine: Database, once: RequestedOnce, raw: Annotated[dict[str, Any], Depends(read_json)]
) -> NewTokenView:
    """Make a token. It is in this answer and nowhere else afterwards; the request sent again gets 409 without it."""
    try:
        asked = TokenRequest.model_validate(raw)
    except ValidationError as error:
        fields = query_fields(error.errors(), known=list(TokenRequest.model_fields))
        detail = "; ".join(f"{field.field} = {field.value!r}: {field.rule}" for field in fields)
        raise ApiError(422, "invalid_token_request", detail, hint="/docs shows the fields.", fields=fields) from None
    lifetime = None if asked.expires_in_s is None else timedelta(seconds=asked.expires_in_s)
    scope = Scope(asked.scope)
    return await run_in_threadpool(
        tokens.create_token, engine, name=asked.name, scope=scope, lifetime=lifetime, key=once
    )


@router.get("")
def list_tokens(engine: Database) -> list[TokenView]:
    """All tokens, newest first, also those that no longer work; never the tokens themselves."""
    return tokens.list_tokens(engine)


@router.delete("/{token_id}", responses={404: {"model": ErrorView, "description": "No token has this id."}})
def revoke_token(engine: Database, token_id: str) -> TokenView:
    """Revoke a token: the next request with it gets 401."""
    return tokens.revoke_token(engine, token_id)
