"""The Python client: the REST API as typed calls.

    from service.client import AdmetaClient

    with AdmetaClient() as client:
        client.submit(definition).wait()
        best = client.best(task="digits", optimizer="admetar")

Answers are the models of `service.models`. Imports neither the server nor torch, Ray or Optuna.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from service.errors import ClientError
from service.following import follow
from service.models import (
    BestView,
    ClusterView,
    ComparisonView,
    ErrorView,
    EventView,
    HealthView,
    ImportanceView,
    NewTokenView,
    OptimizerView,
    Page,
    StudyView,
    TaskView,
    TokenView,
    TrialView,
)

if TYPE_CHECKING:
    from search.definition import StudyDefinition

__all__ = ["AdmetaClient", "ClientError", "Submission"]

DEFAULT_URL = "http://127.0.0.1:8000"
TERMINAL_STATES = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
_ATTEMPTS = 3
_RETRIED_STATUSES = frozenset({502, 503, 504})
Model = TypeVar("Model", bound=BaseModel)


class AdmetaClient:
    """A connection to a service. Reads are repeated when the connection breaks; so is `submit`, which is idempotent.

    Args:
        url: the service's address; default: ADMETA_URL, else http://127.0.0.1:8000.
        token: an access token; default: ADMETA_TOKEN, else none.
        timeout_s: patience with one request.
        transport: another way to send requests, for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = (url or os.environ.get("ADMETA_URL") or DEFAULT_URL).rstrip("/")
        token = token or os.environ.get("ADMETA_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, transport=transport)
        except httpx.InvalidURL as error:
            raise _unreachable(self.url, str(error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, definition: StudyDefinition | Mapping[str, Any]) -> Submission:
        """Submit a study; the same definition again gives the study there is.

        Raises:
            ClientError: 422 for a definition that breaks a rule (see `fields`), 409 for a name that is taken.
        """
        body = definition if isinstance(definition, Mapping) else definition.to_json()
        return self._submit("/v1/studies", body)

    def clone(self, study: str, name: str, *, changes: Mapping[str, Any] | None = None) -> Submission:
        """Submit a study's definition under another name.

        Args:
            study: id or name of the study to start from.
            name: of the new study.
            changes: a JSON Merge Patch: objects are merged key by key, None brings a default back, lists are replaced.

        Raises:
            ClientError: as for `submit`.
        """
        return self._submit(f"/v1/studies/{_part(study)}/clone", {"name": name, "changes": dict(changes or {})})

    def studies(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        optimizer: str | None = None,
        limit: int | None = None,
    ) -> Iterator[StudyView]:
        """Studies, newest first; `limit` of them, or all."""
        return self._pages(StudyView, "/v1/studies", {"state": state, "task": task, "optimizer": optimizer}, limit)

    def study(self, study: str) -> StudyView:
        """A study by id or name, with its definition."""
        return self._get(StudyView, f"/v1/studies/{_part(study)}")

    def cancel(self, study: str) -> StudyView:
        """Cancel a study."""
        return self._change(study, "cancel")

    def pause(self, study: str) -> StudyView:
        """Pause a study: running trials are checkpointed and stopped."""
        return self._change(study, "pause")

    def resume(self, study: str) -> StudyView:
        """Go on with a paused study."""
        return self._change(study, "resume")

    def delete(self, study: str) -> None:
        """Delete a study that has ended, with all results and checkpoints.

        Raises:
            ClientError: 409 until it has ended and its last run has stopped.
        """
        self._send("DELETE", f"/v1/studies/{_part(study)}")

    def trials(
        self,
        study: str,
        *,
        label: str | None = None,
        state: str | None = None,
        order: str | None = None,
        limit: int | None = None,
    ) -> Iterator[TrialView]:
        """Trials of a study: `limit` of them, or all."""
        filters = {"label": label, "state": state, "order": order}
        return self._pages(TrialView, f"/v1/studies/{_part(study)}/trials", filters, limit)

    def trial(self, study: str, label: str, number: int) -> TrialView:
        """One trial, with its curve."""
        return self._get(TrialView, f"/v1/studies/{_part(study)}/trials/{_part(label)}/{number}")

    def cancel_trial(self, study: str, label: str, number: int) -> TrialView:
        """Cancel one trial; the study goes on without it."""
        path = f"/v1/studies/{_part(study)}/trials/{_part(label)}/{number}/cancel"
        return _parse(TrialView, self._send("POST", path))

    def comparison(self, study: str) -> ComparisonView:
        """The study's optimizers, best first."""
        return self._get(ComparisonView, f"/v1/studies/{_part(study)}/comparison")

    def importance(self, study: str, *, method: str | None = None) -> list[ImportanceView]:
        """How much each searched parameter mattered, an optimizer's search each."""
        response = self._send("GET", f"/v1/studies/{_part(study)}/importance", query={"method": method})
        return TypeAdapter(list[ImportanceView]).validate_json(response.content)

    def export(self, study: str, file: IO[bytes], *, form: str = "csv") -> None:
        """Write a study's results to a file as csv, json, parquet or latex; streams."""
        path, params = f"/v1/studies/{_part(study)}/export", {"format": form}
        try:
            with self._http.stream("GET", path, params=params) as response:
                if not response.is_success:
                    response.read()
                    raise _refused(response)
                for chunk in response.iter_bytes():
                    file.write(chunk)
        except httpx.TransportError as error:
            raise _unreachable(self.url, str(error) or type(error).__name__) from None

    def best(self, *, task: str, optimizer: str, model: str | None = None, metric: str | None = None) -> BestView:
        """The best settings known for a task and an optimizer: `AdmetaR(model.parameters(), **best.settings)`."""
        query = {"task": task, "optimizer": optimizer, "model": model, "metric": metric}
        return self._get(BestView, "/v1/best", query)

    def tasks(self) -> list[TaskView]:
        """The tasks that a study can name."""
        return TypeAdapter(list[TaskView]).validate_json(self._send("GET", "/v1/tasks").content)

    def optimizers(self) -> list[OptimizerView]:
        """The optimizers that a study can name."""
        return TypeAdapter(list[OptimizerView]).validate_json(self._send("GET", "/v1/optimizers").content)

    def optimizer(self, name: str) -> OptimizerView:
        """One optimizer: its parameters, rules, defaults and search spaces."""
        return self._get(OptimizerView, f"/v1/optimizers/{_part(name)}")

    def events(
        self, study: str | None = None, *, after: int | None = None, patience_s: float = 60.0
    ) -> Iterator[EventView]:
        """Events as they happen: of one study until it ends, or of all studies without end. Breaks are bridged.

        Args:
            study: id or name; None: all studies.
            after: begin after the event with this id. None: a study's events from the oldest kept, or, of all
                studies, those that happen from now on.
            patience_s: how long the service may be away.

        Raises:
            ClientError: the service refused, or stayed away.
        """
        path = "/v1/events" if study is None else f"/v1/studies/{_part(study)}/events"
        return follow(
            self._http,
            path,
            after=after,
            patience_s=patience_s,
            refused=_refused,
            unreachable=lambda reason: _unreachable(self.url, reason),
        )

    def create_token(self, name: str, *, scope: str = "read", expires_in_s: float | None = None) -> NewTokenView:
        """Make an access token; needs the scope admin. The token is in this answer only."""
        content = json.dumps({"name": name, "scope": scope, "expires_in_s": expires_in_s})
        response = self._send("POST", "/v1/tokens", content=content, headers={"Content-Type": "application/json"})
        return _parse(NewTokenView, response)

    def tokens(self) -> list[TokenView]:
        """All access tokens, without the tokens themselves; needs the scope admin."""
        return TypeAdapter(list[TokenView]).validate_json(self._send("GET", "/v1/tokens").content)

    def revoke_token(self, token_id: str) -> TokenView:
        """End an access token at once; needs the scope admin."""
        return _parse(TokenView, self._send("DELETE", f"/v1/tokens/{_part(token_id)}"))

    def cluster(self) -> ClusterView:
        """The machines, what runs on them, and what waits."""
        return self._get(ClusterView, "/v1/cluster")

    def health(self) -> HealthView:
        """Whether the service works."""
        return self._get(HealthView, "/healthz")

    def wait(
        self,
        study: str,
        *,
        poll_s: float = 1.0,
        timeout_s: float | None = None,
        on_update: Callable[[StudyView], None] | None = None,
    ) -> StudyView:
        """The study once it is COMPLETED, FAILED or CANCELLED.

        Args:
            study: id or name.
            poll_s: seconds between two looks.
            timeout_s: patience in all; None: as long as it takes.
            on_update: told the study at every look.

        Raises:
            TimeoutError: the study has not ended in time.
        """
        started = time.monotonic()
        while True:
            view = self.study(study)
            if on_update is not None:
                on_update(view)
            if view.state in TERMINAL_STATES:
                return view
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                raise TimeoutError(f"study '{view.name}' is still {view.state} after {timeout_s:g} s")
            time.sleep(poll_s)

    def _get(self, model: type[Model], path: str, query: Mapping[str, Any] | None = None) -> Model:
        return _parse(model, self._send("GET", path, query=query))

    def _change(self, study: str, verb: str) -> StudyView:
        return _parse(StudyView, self._send("POST", f"/v1/studies/{_part(study)}/{verb}"))

    def _submit(self, path: str, body: Mapping[str, Any]) -> Submission:
        content = json.dumps(body)  # NaN passes here: the service names the field
        response = self._send("POST", path, content=content, headers={"Content-Type": "application/json"})
        return Submission(
            client=self, study=_parse(StudyView, response), created=response.status_code == httpx.codes.CREATED
        )

    def _pages(self, item: type[Model], path: str, filters: Mapping[str, Any], limit: int | None) -> Iterator[Model]:
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            query = {**filters, "cursor": cursor, "limit": 100 if left is None else min(left, 100)}
            page = self._get(Page[item], path, query)  # type: ignore[valid-type]
            yield from page.items
            left = None if left is None else left - len(page.items)
            cursor = page.next_cursor
            if cursor is None:
                return

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        content: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        params = {name: value for name, value in (query or {}).items() if value is not None}
        for attempt in range(1, _ATTEMPTS + 1):
            last = attempt == _ATTEMPTS
            try:
                response = self._http.request(method, path, params=params, content=content, headers=headers)
            except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                if last or not isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
                    raise _unreachable(self.url, str(error) or type(error).__name__) from None
            else:
                if response.is_success:
                    return response
                if last or response.status_code not in _RETRIED_STATUSES:
                    raise _refused(response)
            time.sleep(0.2 * attempt)
        raise AssertionError("the last attempt returns or raises")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A study that was submitted; `created` is False where the same study was there already."""

    client: AdmetaClient
    study: StudyView
    created: bool

    def wait(
        self, *, timeout_s: float | None = None, on_update: Callable[[StudyView], None] | None = None
    ) -> StudyView:
        """The study once it has ended; see `AdmetaClient.wait`."""
        return self.client.wait(self.study.id, timeout_s=timeout_s, on_update=on_update)


def _part(name: str) -> str:
    return quote(name, safe="") or "%20"


def _parse(model: type[Model], response: httpx.Response) -> Model:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise ClientError(
            f"the answer to {response.request.method} {response.request.url} is not a {model.__name__} "
            f"({error.error_count()} fields differ).",
            hint="Client and service are of different versions, or something else listens there: see /healthz.",
            status=response.status_code,
            error="unexpected_answer",
        ) from None


def _refused(response: httpx.Response) -> ClientError:
    try:
        view = ErrorView.model_validate_json(response.content)
    except ValidationError:
        return ClientError(
            f"{response.request.method} {response.request.url} was answered with {response.status_code}.",
            hint="Is this address an admeta service? Something else seems to listen there.",
            status=response.status_code,
            error="unexpected_answer",
        )
    return ClientError(view.detail, hint=view.hint, status=response.status_code, error=view.error, fields=view.fields)


def _unreachable(url: str, reason: str) -> ClientError:
    return ClientError(
        f"no service answers at {url} ({reason}).",
        hint="Start one with `admeta serve`, or give its address with --url or ADMETA_URL.",
        status=None,
        error="unreachable",
    )
