"""Trials: list, read, cancel."""

from __future__ import annotations

from admeta.client.exchange import get, part, read, read_pages
from admeta.client.models import TrialView
from admeta.client.wire import Flow, Items, Repeat, Request


def trials(
    study: str,
    *,
    label: str | None = None,
    state: str | None = None,
    order: str | None = None,
    limit: int | None = None,
) -> Items[TrialView]:
    """Trials of a study with their runs: `limit` of them, or all.

    Args:
        study: id or name.
        label: only of this optimizer's search.
        state: only in this state, as COMPLETE.
        order: number, or best: best validation value first.
        limit: at most so many.
    """
    query = {"label": label, "state": state, "order": order}
    return read_pages(TrialView, f"/v1/studies/{part(study)}/trials", query=query, limit=limit)


def trial(study: str, label: str, number: int) -> Flow[TrialView]:
    """One trial, with its curve."""
    return read(TrialView, get(_path(study, label, number)))


def cancel_trial(study: str, label: str, number: int) -> Flow[TrialView]:
    """Cancel one trial; the study goes on without it.

    Raises:
        ClientError: 409 when no run of it waits or trains.
    """
    path = f"{_path(study, label, number)}/cancel"
    return read(TrialView, Request(method="POST", path=path, repeat=Repeat.UNSENT))


def _path(study: str, label: str, number: int) -> str:
    return f"/v1/studies/{part(study)}/trials/{part(label)}/{number}"
