"""The machines that studies run on."""

from __future__ import annotations

from fastapi import APIRouter, Request

from service.api.dependencies import Database
from service.database.queries import active_runs, queued_studies
from service.models import ClusterView

router = APIRouter(prefix="/v1/cluster", tags=["cluster"])


@router.get("")
def get_cluster(engine: Database, request: Request) -> ClusterView:
    """Nodes with their processors and GPUs, the runs on them, and the studies that wait."""
    supervisor = request.app.state.supervisor
    ray: str = supervisor.ray_status()
    nodes = [] if ray == "starting" or ray.startswith("unavailable") else supervisor.nodes()
    return ClusterView(ray=ray, nodes=nodes, runs=active_runs(engine), queue=queued_studies(engine))
