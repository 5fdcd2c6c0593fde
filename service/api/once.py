"""The Idempotency-Key header: a request that is sent again, because its answer was lost, takes effect once.

Owns the header's form (draft-ietf-httpapi-idempotency-key-header: a string, in quotes or without) and the replay. What
is kept, and that it is kept with what the request made, is the business of `service.database.idempotency`.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response
from fastapi.concurrency import run_in_threadpool

from service.api.body import read_json
from service.api.dependencies import Database
from service.api.errors import ApiError
from service.api.invalid import shorten
from service.database import idempotency
from service.database.idempotency import AnsweredBeforeError, IdempotencyKey

REPLAYED = "Idempotency-Replayed"
_KEY = re.compile(r'"([\x20\x21\x23-\x5b\x5d-\x7e]{1,255})"|([\x21\x23-\x5b\x5d-\x7e]{1,255})')
_DESCRIPTION = (
    "Your own name for this request, 1 to 255 characters, a random UUID say. Sent again with it within 24 hours, the "
    f"request gets the first answer once more, with the header {REPLAYED}: true, and takes no effect again. Refused "
    "requests are not kept."
)


async def _once(
    engine: Database,
    request: Request,
    raw: Annotated[dict[str, Any], Depends(read_json)],
    key: Annotated[str | None, Header(alias="Idempotency-Key", description=_DESCRIPTION)] = None,
) -> IdempotencyKey | None:
    if key is None:
        return None
    found = _KEY.fullmatch(key.strip())
    if found is None:
        raise ApiError(
            400,
            "invalid_idempotency_key",
            f"Idempotency-Key {shorten(key)!r} must be 1 to 255 visible ASCII characters without quotes inside.",
            hint="Send a random UUID, a new one for each request that is not a repetition.",
        )
    bearer = request.scope.get("state", {}).get("bearer")
    query = [request.url.query] if request.url.query else []
    asked = json.dumps([request.method, request.url.path, *query, raw], sort_keys=True)
    once = IdempotencyKey(
        caller="" if bearer is None else bearer.id,
        key=found[1] or found[2],
        request_sha256=hashlib.sha256(asked.encode()).hexdigest(),
    )
    await run_in_threadpool(idempotency.look_up, engine, once)
    return once


RequestedOnce = Annotated[IdempotencyKey | None, Depends(_once)]
"""The request's key; where it was answered before, the answer goes out and the route is not called."""


async def replay(_request: Request, error: AnsweredBeforeError) -> Response:
    """The answer that the request got the first time."""
    found = error.answer
    headers = {REPLAYED: "true"} | ({} if found.location is None else {"Location": found.location})
    return Response(found.body, status_code=found.status, media_type="application/json", headers=headers)
