"""The API's documentation as a page: read from /openapi.json, self-contained, so that it works without the internet.

FastAPI's own page loads its parts from a CDN.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from importlib import resources

from fastapi import APIRouter, Response

router = APIRouter(include_in_schema=False)


@router.get("/docs")
def get_docs() -> Response:
    """The documentation page."""
    page, policy = _page()
    return Response(page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": policy})


@lru_cache(maxsize=1)
def _page() -> tuple[str, str]:
    """The page, and the policy that lets its own script and style run and nothing else."""
    page = resources.files("service.api").joinpath("pages/docs.html").read_text(encoding="utf-8")
    script, style = (_hash(page, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def _hash(page: str, tag: str) -> str:
    content = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    assert content is not None, tag
    return f"'sha256-{base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()}'"
