"""What Prometheus scrapes."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service.metrics import Metrics

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    response_class=Response,
    response_model=None,
    responses={200: {"description": "Prometheus's text format.", "content": {"text/plain": {}}}},
)
def get_metrics(request: Request) -> Response:
    """Studies and trials by state, seconds spent, the queue, leases, and the latency of requests."""
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
