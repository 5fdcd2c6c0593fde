"""What the client's logic asks of a connection: the whole protocol between the two, and no connection.

Every verb of the client is a generator that yields effects and is sent their results, so that it is written once and
runs over a blocking connection (`admeta.client.blocking`), over asyncio (`admeta.client.asynchronous`), and in tests
over none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

import httpx

from admeta.client.errors import ClientError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Repeat(Enum):
    """When a request may be sent again."""

    ALWAYS = "twice does what once does"
    UNSENT = "only while no connection came about: the first may have been carried out"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to the service.

    Attributes:
        path: percent-encoded, from the service's root.
        query: parameters; those that are None are left out.
        content: a JSON body.
        silence_s: patience between two pieces of the answer; None: the client's own.
    """

    method: str
    path: str
    query: Mapping[str, str | int | None] = field(default_factory=dict)
    content: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    silence_s: float | None = None
    repeat: Repeat = Repeat.ALWAYS


@dataclass(frozen=True)
class Send:
    """Send a request; the result is its `httpx.Response`, read in full."""

    request: Request


@dataclass(frozen=True)
class Open:
    """Send a request whose answer is read bit by bit; the result is its `httpx.Response`, a refusal read in full.

    A stream opened before is closed. What is still open when the generator ends is closed too.
    """

    request: Request


@dataclass(frozen=True)
class NextLine:
    """The opened answer's next line, without its end; None after the last."""


@dataclass(frozen=True)
class NextChunk:
    """The opened answer's next bytes; None after the last."""


@dataclass(frozen=True)
class Sleep:
    """Let some seconds pass."""

    seconds: float


@dataclass(frozen=True)
class Now:
    """Seconds of a clock that never goes back."""


@dataclass(frozen=True)
class Emit(Generic[Item]):
    """Give an item to the caller."""

    item: Item


Effect: TypeAlias = Send | Open | NextLine | NextChunk | Sleep | Now
Flow: TypeAlias = Generator[Effect, Any, Result]
"""Logic that ends with a result."""
Items: TypeAlias = Generator[Effect | Emit[Item], Any, None]
"""Logic that gives items as it goes."""


class Steps(Generic[Result]):
    """Logic while a connection runs it.

    Attributes:
        effect: what it wants next; None: it has ended.
    """

    def __init__(self, flow: Generator[Any, Any, Result]) -> None:
        self._flow = flow
        self._result: list[Result] = []
        self.effect: Any = None
        self.reply(None)

    @property
    def result(self) -> Result:
        """What it ended with."""
        return self._result[0]

    def reply(self, value: object) -> None:
        """Give it the result of its effect."""
        self._advance(lambda: self._flow.send(value))

    def fail(self, error: ClientError) -> None:
        """Tell it that its effect failed."""
        self._advance(lambda: self._flow.throw(error))

    def _advance(self, step: Callable[[], Any]) -> None:
        try:
            self.effect = step()
        except StopIteration as end:
            self.effect = None
            self._result.append(end.value)


class Loss(Enum):
    """How a request got no answer."""

    UNSENT = "no connection came about"
    BROKEN = "the connection broke"
    TIMEOUT = "no answer came in time"
    ADDRESS = "the address is none"


class UnansweredError(ClientError):
    """No answer came; connections raise it into the generator."""

    def __init__(self, url: str, error: Exception) -> None:
        self.loss = _loss(error)
        reason = str(error) or type(error).__name__
        if self.loss is Loss.TIMEOUT:
            detail = f"the service at {url} did not answer in time ({reason})."
            hint = "See whether it is well at /healthz, or give the client a longer timeout_s."
        else:
            detail = f"no service answers at {url} ({reason})."
            hint = "Start one with `admeta serve`, or give its address with --url or ADMETA_URL."
        super().__init__(detail, hint=hint, status=None, error="unreachable")


def _loss(error: Exception) -> Loss:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return Loss.UNSENT
    if isinstance(error, httpx.TimeoutException):
        return Loss.TIMEOUT
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return Loss.BROKEN
    return Loss.ADDRESS
