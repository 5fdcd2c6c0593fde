"""The base of every answer, and a page of a list."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

Item = TypeVar("Item")


class View(BaseModel):
    """Base of every answer. Unknown fields are kept out; numbers that are not finite become null."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class Page(View, Generic[Item]):
    """A page of a list; `next_cursor` is null on the last one."""

    items: list[Item]
    next_cursor: str | None = None
