"""Results: comparison, importance, export, best."""

from __future__ import annotations

from typing import IO

from admeta.client.exchange import exchange, get, part, read, read_list
from admeta.client.models import BestView, ComparisonView, ImportanceView
from admeta.client.wire import Flow, NextChunk, Open


def comparison(study: str, *, test: str | None = None) -> Flow[ComparisonView]:
    """The study's optimizers, best first.

    Args:
        study: id or name.
        test: welch, or wilcoxon on runs paired by seed. Default: welch.
    """
    return read(ComparisonView, get(f"/v1/studies/{part(study)}/comparison", {"test": test}))


def importance(study: str, *, method: str | None = None) -> Flow[list[ImportanceView]]:
    """How much each searched parameter mattered, an optimizer's search each."""
    return read_list(ImportanceView, get(f"/v1/studies/{part(study)}/importance", {"method": method}))


def export(study: str, file: IO[bytes], *, form: str = "csv") -> Flow[None]:
    """Write a study's results to a file as csv, json, parquet or latex, as they come in.

    Raises:
        ClientError: the service refused, or the connection broke; the file then has a part of the results.
    """
    yield from exchange(get(f"/v1/studies/{part(study)}/export", {"format": form}), via=Open)
    while (chunk := (yield NextChunk())) is not None:
        file.write(chunk)


def best(*, task: str, optimizer: str, model: str | None = None, metric: str | None = None) -> Flow[BestView]:
    """The best settings known for a task and an optimizer: `AdmetaR(model.parameters(), **best.params)`.

    Args:
        task: a task's name.
        optimizer: an optimizer's name.
        model: only studies of this model.
        metric: default: the task's own.

    Raises:
        ClientError: 404 (`no_result`) where no trial of the optimizer on the task has finished yet.
    """
    query = {"task": task, "optimizer": optimizer, "model": model, "metric": metric}
    return read(BestView, get("/v1/best", query))
