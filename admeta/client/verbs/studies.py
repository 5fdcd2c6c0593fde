"""Studies: submit, clone, list, read, cancel, pause, resume, delete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from admeta.client.exchange import create, exchange, get, parse, part, read, read_pages
from admeta.client.models import StudyView
from admeta.client.wire import Flow, Items, Repeat, Request

if TYPE_CHECKING:
    from search.definition import StudyDefinition


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A study that was submitted; `created` is False where the same study was there already."""

    study: StudyView
    created: bool


def submit(
    definition: StudyDefinition | Mapping[str, Any], *, space: str | None = None, idempotency_key: str | None = None
) -> Flow[Submitted]:
    """Submit a study; the same definition again gives the study there is.

    Args:
        definition: a study definition, or the same as JSON values.
        space: named space of every optimizer that names none; `paper-best`: begin with the paper's best settings.
        idempotency_key: the service answers a key that it knows as it did before. Default: a new one, which serves
            the repetitions of this call.

    Raises:
        ClientError: 422 for a definition that breaks a rule (see `fields`), 409 for a name that is taken.
    """
    body = definition if isinstance(definition, Mapping) else definition.to_json()
    return _submit("/v1/studies", body, idempotency_key, {"space": space})


def clone(
    study: str, name: str, *, changes: Mapping[str, Any] | None = None, idempotency_key: str | None = None
) -> Flow[Submitted]:
    """Submit a study's definition under another name.

    Args:
        study: id or name of the study to start from.
        name: of the new study.
        changes: a JSON Merge Patch: objects are merged key by key, None brings a default back, lists are replaced.
        idempotency_key: as for `submit`.

    Raises:
        ClientError: as for `submit`.
    """
    body = {"name": name, "changes": dict(changes or {})}
    return _submit(f"/v1/studies/{part(study)}/clone", body, idempotency_key)


def studies(
    *,
    name: str | None = None,
    state: str | None = None,
    task: str | None = None,
    optimizer: str | None = None,
    limit: int | None = None,
) -> Items[StudyView]:
    """Studies, newest first; `limit` of them, or all.

    Args:
        name: only those whose name contains this, in any case.
        state: only in this state, as RUNNING.
        task: only of this task.
        optimizer: only those that search this optimizer.
        limit: at most so many.
    """
    query = {"name": name, "state": state, "task": task, "optimizer": optimizer}
    return read_pages(StudyView, "/v1/studies", query=query, limit=limit)


def study(study: str) -> Flow[StudyView]:
    """A study by id or name, with its definition."""
    return read(StudyView, get(f"/v1/studies/{part(study)}"))


def cancel(study: str) -> Flow[StudyView]:
    """Cancel a study: running trials are stopped, finished ones stay.

    Raises:
        ClientError: 409 when it has ended already.
    """
    return _change(study, "cancel")


def pause(study: str) -> Flow[StudyView]:
    """Pause a study: running trials are checkpointed and stopped.

    Raises:
        ClientError: 409 unless it is QUEUED or RUNNING.
    """
    return _change(study, "pause")


def resume(study: str) -> Flow[StudyView]:
    """Go on with a paused study.

    Raises:
        ClientError: 409 unless it is PAUSED.
    """
    return _change(study, "resume")


def delete(study: str) -> Flow[None]:
    """Delete a study that has ended, with all results and checkpoints.

    Raises:
        ClientError: 409 until it has ended and its last run has stopped.
    """
    yield from exchange(Request(method="DELETE", path=f"/v1/studies/{part(study)}", repeat=Repeat.UNSENT))


def _submit(
    path: str, body: Mapping[str, Any], idempotency_key: str | None, query: Mapping[str, str | None] | None = None
) -> Flow[Submitted]:
    response = yield from exchange(create(path, body, query=query, idempotency_key=idempotency_key))
    return Submitted(study=parse(StudyView, response), created=response.status_code == httpx.codes.CREATED)


def _change(study: str, verb: str) -> Flow[StudyView]:
    path = f"/v1/studies/{part(study)}/{verb}"
    return read(StudyView, Request(method="POST", path=path, repeat=Repeat.UNSENT))
