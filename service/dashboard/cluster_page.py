"""The cluster as a page: nodes, GPUs, what runs where, what waits."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.api.cluster import get_cluster
from service.api.dependencies import Database
from service.dashboard.templating import page

router = APIRouter(include_in_schema=False)


@router.get("/cluster")
def show_cluster(request: Request, engine: Database) -> Response:
    """What `GET /v1/cluster` answers, drawn; read anew every few seconds, since no event tells of a node."""
    view = get_cluster(engine, request)
    known = {node.address for node in view.nodes}
    return page(
        request,
        "cluster.html",
        cluster=view,
        runs_at={address: [run for run in view.runs if run.node == address] for address in known},
        elsewhere=[run for run in view.runs if run.node not in known],
    )
