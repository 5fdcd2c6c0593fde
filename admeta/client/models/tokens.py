"""Access tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from admeta.client.models.base import View


class TokenRequest(BaseModel):
    """A token to make."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(min_length=1, max_length=100, description="What it is for, or who has it.")
    scope: Literal["read", "write", "admin"] = "read"
    expires_in_s: float | None = Field(
        default=None, gt=0, le=10 * 365 * 86_400, description="Seconds that it works; null: until it is revoked."
    )


class TokenView(View):
    """An access token, without the token itself."""

    id: str
    name: str
    scope: str = Field(description="read, write or admin; each may do what those before it may.")
    prefix: str = Field(description="How the token begins, to know it by.")
    active: bool = Field(description="Neither revoked nor expired.")
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    revoked_at: datetime | None


class NewTokenView(TokenView):
    """A token just made. It is shown here only: the service keeps no more than its hash."""

    token: str = Field(examples=["adm_…"])
