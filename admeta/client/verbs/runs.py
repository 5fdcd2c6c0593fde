"""Runs: list, read, curve, and what they printed."""

from __future__ import annotations

import httpx

from admeta.client.errors import ClientError
from admeta.client.exchange import exchange, get, part, read, read_list, read_pages, unexpected
from admeta.client.models import LogView, PointView, StudyRunView
from admeta.client.patience import Patience
from admeta.client.wire import Emit, Flow, Items, Sleep

FINISHED_STATES = frozenset({"COMPLETE", "PRUNED", "FAIL"})


def runs(
    study: str,
    *,
    label: str | None = None,
    trial: int | None = None,
    stage: str | None = None,
    state: str | None = None,
    failure: str | None = None,
    order: str | None = None,
    limit: int | None = None,
) -> Items[StudyRunView]:
    """Runs of a study, of the search and of the confirmation: `limit` of them, or all.

    Args:
        study: id or name.
        label: only of this optimizer's search.
        trial: only of trials with this number.
        stage: search or confirm.
        state: only in this state, as RUNNING.
        failure: only those that failed so, as diverged.
        order: id: as they were made; best: best validation value first.
        limit: at most so many.
    """
    query = {"label": label, "trial": trial, "stage": stage, "state": state, "failure": failure, "order": order}
    return read_pages(StudyRunView, f"/v1/studies/{part(study)}/runs", query=query, limit=limit)


def run(run: int) -> Flow[StudyRunView]:
    """One run with its attempts, by its id."""
    return read(StudyRunView, get(f"/v1/runs/{run}"))


def curve(run: int) -> Flow[list[PointView]]:
    """A run's evaluations, first to last."""
    return read_list(PointView, get(f"/v1/runs/{run}/curve"))


def logs(run: int, *, attempt: int | None = None, offset: int = 0, tail: int | None = None) -> Flow[LogView]:
    """What an attempt of a run has printed so far, tracebacks included.

    Args:
        run: its id.
        attempt: default: the latest.
        offset: begin here, in bytes since the attempt began; 0: with all that is kept.
        tail: only the last so many lines.
    """
    query = {"attempt": attempt, "offset": offset or None, "tail": tail}
    response = yield from exchange(get(f"/v1/runs/{run}/logs", query))
    return _log(run, response)


def follow_logs(
    run: int,
    *,
    attempt: int | None = None,
    tail: int | None = None,
    poll_s: float = 1.0,
    patience_s: float = 60.0,
) -> Items[LogView]:
    """What a run prints, part by part as it comes: of one attempt until that ends, or of all until the run ends.

    Args:
        run: its id.
        attempt: only this one; None: from the latest on, and those that follow when the run is started again.
        tail: begin with the last so many lines.
        poll_s: seconds between two looks.
        patience_s: how long the service may be away, once it has answered.
    """
    patience = Patience(patience_s)
    shown, offset = attempt, 0
    while True:
        is_over = False
        try:
            log = yield from logs(run, attempt=shown, offset=offset, tail=tail)
            if log.text:
                yield Emit(log)
            shown, offset, tail = log.attempt, log.offset, None
            if log.ended and attempt is None:
                latest = yield from logs(run, tail=0)
                if latest.attempt > log.attempt:
                    shown, offset = latest.attempt, 0
                    continue
                is_over = (yield from read(StudyRunView, get(f"/v1/runs/{run}"))).state in FINISHED_STATES
            yield from patience.hear()
        except ClientError as error:
            yield from patience.bear(error)
        else:
            if is_over or (log.ended and attempt is not None):
                return
        yield Sleep(poll_s)


def _log(run: int, response: httpx.Response) -> LogView:
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
