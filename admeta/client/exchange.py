"""Requests and answers as values, without a connection: what both clients share.

Owns when a request may be repeated, how an answer is read, and the errors for answers that cannot be used. Also the
service's address, and the proxy that the environment names for it: requests to this machine never go through one. httpx
would choose the proxy by itself, but could not say which one an error comes from.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from admeta.client.errors import ClientError
from admeta.client.models import ErrorView, FieldError, LogView

if TYPE_CHECKING:
    from pandas import DataFrame

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, kw_only=True)
class Route:
    """The way to a service. As text: the address, and the proxy where there is one.

    Attributes:
        url: the service's address, without a slash at its end.
        proxy: the proxy's address; None: a direct connection.
        variable: the environment variable that names the proxy.
        host: the service's host, where the address has one.
    """

    url: str
    host: str = ""
    proxy: str | None = None
    variable: str = ""

    def __str__(self) -> str:
        return self.url if self.proxy is None else f"{self.url} through the proxy {self.proxy} ({self.variable})"

    @property
    def advice(self) -> str:
        """How to connect without the proxy; empty where there is none."""
        return "" if self.proxy is None else f" To connect without the proxy, set NO_PROXY={self.host}."

    @property
    def is_encrypted(self) -> bool:
        """Whether the service's certificate is checked."""
        return self.url.lower().startswith("https:")

    def unusable(self, error: Exception) -> ClientError:
        """The error for a connection that cannot even be prepared."""
        reason = str(error) or type(error).__name__
        if isinstance(error, OSError):
            detail = f"the certificates to check {self.url} with cannot be read: {reason}."
            hint = "Let SSL_CERT_FILE name a file with certificates in PEM form, or unset it."
        else:
            detail = f"the proxy {self.proxy} ({self.variable}) cannot be used: {reason}."
            hint = f"Correct {self.variable}.{self.advice}"
        return ClientError(detail, hint=hint, status=None, error="unreachable")


def find_route(url: str | None) -> Route:
    """The way to the service at `url`; None: ADMETA_URL, else this machine's."""
    url = (url or os.environ.get("ADMETA_URL") or DEFAULT_URL).rstrip("/")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:  # httpx will say what is wrong with it
        return Route(url=url)
    if _is_this_machine(host) or proxy_bypass(host):
        return Route(url=url)
    proxies = getproxies()
    kind = parts.scheme if parts.scheme in proxies else "all"
    if not proxies.get(kind):
        return Route(url=url)
    proxy = proxies[kind] if "://" in proxies[kind] else f"http://{proxies[kind]}"
    names = (f"{kind}_proxy", f"{kind}_proxy".upper())
    variable = next((name for name in names if os.environ.get(name)), "the system's settings")
    return Route(url=url, host=host, proxy=proxy, variable=variable)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


Model = TypeVar("Model", bound=BaseModel)
Query = Mapping[str, str | float | Sequence[str] | None]
PAUSES_S = (0.2, 0.4, 0.8)
"""Seconds before each repetition of a request."""
_LONGEST_PAUSE_S = 2.0
RETURNING = frozenset({502, 503, 504})
"""Statuses of a service, or of a proxy in front of it, that will be back soon."""
NO_ANSWER = (httpx.TransportError, httpx.InvalidURL)
"""Exceptions of httpx for a request that got no answer."""
clock = time.monotonic


class Repeat(Enum):
    """When a request may be sent again."""

    ALWAYS = "sending it twice has the effect of sending it once"
    UNSENT = "only while no connection was made, because the first request may have been carried out"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to the service.

    Attributes:
        path: percent-encoded, from the service's root.
        query: parameters; those that are None are left out.
        content: a JSON body.
        silence_s: longest wait between two parts of the answer; None: the client's own timeout.
    """

    method: str
    path: str
    query: Query = field(default_factory=dict)
    content: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    silence_s: float | None = None
    repeat: Repeat = Repeat.ALWAYS

    def build(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """The request as httpx sends it."""
        timeout: Any = httpx.USE_CLIENT_DEFAULT
        if self.silence_s is not None:
            timeout = httpx.Timeout(**{**http.timeout.as_dict(), "read": self.silence_s})
        return http.build_request(
            self.method,
            self.path,
            params={name: value for name, value in self.query.items() if value is not None},
            content=self.content,
            headers=dict(self.headers),
            timeout=timeout,
        )

    def pause_s(self, n_repeated: int, error: ClientError) -> float | None:
        """Seconds until the request may be sent again after an error; None: it may not.

        Args:
            n_repeated: how often it was repeated already.
            error: no answer came, or the service refused.
        """
        if n_repeated >= len(PAUSES_S):
            return None
        is_always = self.repeat is Repeat.ALWAYS
        if isinstance(error, UnansweredError):
            is_safe = error.loss is Loss.UNSENT or (error.loss is Loss.BROKEN and is_always)
            return PAUSES_S[n_repeated] if is_safe else None
        if not is_always or error.status not in RETURNING:
            return None
        return PAUSES_S[n_repeated] if error.retry_after_s is None else min(error.retry_after_s, _LONGEST_PAUSE_S)


class Loss(Enum):
    """Why a request got no answer."""

    UNSENT = "no connection was made"
    BROKEN = "the connection broke"
    TIMEOUT = "the answer took too long"
    ADDRESS = "the address is not valid"


class UnansweredError(ClientError):
    """No answer came."""

    def __init__(self, route: Route, error: Exception) -> None:
        self.loss = _loss(error)
        reason = str(error) or type(error).__name__
        if self.loss is Loss.TIMEOUT:
            detail = f"the service at {route} did not answer in time ({reason})."
            hint = f"Look at its /healthz, or give the client a longer timeout_s.{route.advice}"
        else:
            detail = f"no service answers at {route} ({reason})."
            hint = f"Start one with `admeta serve`, or give its address with --url or ADMETA_URL.{route.advice}"
        super().__init__(detail, hint=hint, status=None, error="unreachable")


class Backoff:
    """How long a call that follows a study or a run tries again while the service does not answer.

    Args:
        retry_timeout_s: longest time, in seconds, since the last answer. Before the first answer every error is
            raised, because the address may be wrong.
    """

    def __init__(self, retry_timeout_s: float) -> None:
        self._retry_timeout_s = retry_timeout_s
        self._answered_at: float | None = None

    def answered(self) -> None:
        """Record that the service answered."""
        self._answered_at = clock()

    def check(self, error: ClientError) -> None:
        """Raise `error` unless the call should try again."""
        if self._answered_at is None and error.status is not None:  # an answer like 503 shows that the address is right
            self._answered_at = clock()
        may_pass = error.loss is not Loss.ADDRESS if isinstance(error, UnansweredError) else error.status in RETURNING
        if self._answered_at is None or not may_pass or clock() - self._answered_at > self._retry_timeout_s:
            raise error


def authorization(token: str | None) -> dict[str, str]:
    """The header that carries the access token: as given, else ADMETA_TOKEN, else none. Blanks around it are left out.

    Raises:
        ClientError: a header cannot carry it. The error does not show it.
    """
    token = (token or os.environ.get("ADMETA_TOKEN") or "").strip()
    if not re.fullmatch(r"[\x21-\x7e]*", token):
        raise ClientError(
            f"the access token ({len(token)} characters) contains a blank, a line break or a character outside ASCII.",
            hint="Copy the token again, as `admeta token create` printed it, into ADMETA_TOKEN.",
            status=None,
            error="invalid_token",
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def get(path: str, query: Query | None = None) -> Request:
    """A request that reads."""
    return Request(method="GET", path=path, query=query or {})


def ask(path: str, body: Mapping[str, Any]) -> Request:
    """A request that reads, with a question in its body. It may be repeated."""
    return Request(method="POST", path=path, content=json.dumps(body), headers={"Content-Type": "application/json"})


def change(method: str, path: str, body: Mapping[str, Any] | None = None) -> Request:
    """A request that changes something and must not be carried out twice."""
    if body is None:
        return Request(method=method, path=path, repeat=Repeat.UNSENT)
    headers = {"Content-Type": "application/json"}
    return Request(method=method, path=path, content=json.dumps(body), headers=headers, repeat=Repeat.UNSENT)


def create(
    path: str, body: Mapping[str, Any], *, idempotency_key: str | None, query: Mapping[str, str | None] | None = None
) -> Request:
    """A request that creates something. Its key lets the service recognise repetitions, so it may be repeated."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    content = json.dumps(_to_json(body, ""))  # NaN is let through: the service names the field
    return Request(method="POST", path=path, query=query or {}, content=content, headers=headers)


def _to_json(value: Any, field: str) -> Any:
    """The value as JSON values: numbers and arrays of NumPy as numbers and lists, paths as text.

    Raises:
        ClientError: JSON has no form for a value; the error names its field.
    """
    if isinstance(value, Mapping):
        return {str(key): _to_json(item, f"{field}.{key}" if field else str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [_to_json(item, f"{field}.{position}") for position, item in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "tolist"):  # a number or an array of NumPy, a tensor of torch
        return value.tolist()
    raise ClientError(
        f"{field} = {value!r} is a {type(value).__name__}, which JSON cannot express.",
        hint="Use numbers, text, True, False, None, lists and dicts.",
        status=None,
        error="invalid_definition",
        fields=[FieldError(field=field, value=repr(value), rule=f"must not be a {type(value).__name__}")],
    )


def part(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="") or "%20"


def parse(model: type[Model], response: httpx.Response) -> Model:
    """The answer as a model. Raises ClientError where it is not one."""
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise unexpected(response, f"a {model.__name__}", n_fields=error.error_count()) from None


def parse_list(model: type[Model], response: httpx.Response) -> list[Model]:
    """The answer as a list of models. Raises ClientError where it is not one."""
    try:
        return TypeAdapter(list[model]).validate_json(response.content)  # type: ignore[valid-type]
    except ValidationError as error:
        raise unexpected(response, f"a list of {model.__name__}", n_fields=error.error_count()) from None


def parse_log(run: int, response: httpx.Response) -> LogView:
    """A part of a log, whose position is in the headers. Raises ClientError where they are missing."""
    headers = response.headers
    try:
        return LogView(
            run=run,
            attempt=int(headers["X-Log-Attempt"]),
            text=response.text,
            offset=int(headers["X-Log-Offset"]),
            ended=headers["X-Log-Ended"] == "true",
        )
    except (KeyError, ValueError):
        raise unexpected(response, "a log", n_fields=1) from None


def to_dataframe(items: Iterable[BaseModel]) -> DataFrame:
    """Answers as a pandas DataFrame, a row for each: trials, runs, the points of a curve, the rows of a comparison.

    The fields of an object become columns of their own, as `settings.lr`; lists stay in one column.

    Raises:
        ImportError: pandas is not installed.
    """
    import pandas as pd

    return pd.json_normalize([item.model_dump() for item in items])


def check(response: httpx.Response, route: Route) -> httpx.Response:
    """The answer itself, where it is a success, or 304 to a request that asked for changes only.

    Raises:
        ClientError: the service refused.
    """
    status, asked = response.status_code, response.headers.get("Retry-After", "")
    if response.is_success or status == httpx.codes.NOT_MODIFIED:
        return response
    retry_after_s = float(asked) if asked.isdecimal() else None
    try:
        view = ErrorView.model_validate_json(response.content)
    except ValidationError:
        view = ErrorView(
            error="unexpected_answer",
            detail=f"{response.request.method} {response.request.url.path} at {route} was answered with {status}.",
            hint=f"Check that this is the address of an admeta service; another program answers there.{route.advice}",
        )
    raise ClientError(
        view.detail, hint=view.hint, status=status, error=view.error, fields=view.fields, retry_after_s=retry_after_s
    )


def unexpected(response: httpx.Response, wanted: str, *, n_fields: int) -> ClientError:
    """The error for an answer in which some fields are not as expected."""
    return ClientError(
        f"the answer to {response.request.method} {response.request.url} is not {wanted} ({n_fields} fields differ).",
        hint="Client and service are of different versions, or another program listens there: see /healthz.",
        status=response.status_code,
        error="unexpected_answer",
    )


def _loss(error: Exception) -> Loss:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return Loss.UNSENT
    if isinstance(error, httpx.TimeoutException):
        return Loss.TIMEOUT
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return Loss.BROKEN
    return Loss.ADDRESS
