"""Access tokens: make, list, revoke. All need the scope admin."""

from __future__ import annotations

from admeta.client.exchange import create, get, part, read, read_list
from admeta.client.models import NewTokenView, TokenView
from admeta.client.wire import Flow, Request


def create_token(
    name: str, *, scope: str = "read", expires_in_s: float | None = None, idempotency_key: str | None = None
) -> Flow[NewTokenView]:
    """Make an access token. The token is in this answer only.

    Args:
        name: what it is for, or who has it.
        scope: read, write or admin.
        expires_in_s: seconds that it works; None: until it is revoked.
        idempotency_key: as for `submit`.
    """
    body = {"name": name, "scope": scope, "expires_in_s": expires_in_s}
    return read(NewTokenView, create("/v1/tokens", body, idempotency_key=idempotency_key))


def tokens() -> Flow[list[TokenView]]:
    """All access tokens, without the tokens themselves."""
    return read_list(TokenView, get("/v1/tokens"))


def revoke_token(token_id: str) -> Flow[TokenView]:
    """End an access token at once."""
    return read(TokenView, Request(method="DELETE", path=f"/v1/tokens/{part(token_id)}"))
