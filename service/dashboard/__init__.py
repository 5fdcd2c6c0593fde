"""Pages for people: what the API says, drawn. Served at `/` by the service.

Owns templates, static files and what they show. Decides nothing: every number is from `service.database.queries` or
`search.analysis`. Nothing is loaded from elsewhere, and a page contains no script or style.
"""

from __future__ import annotations

from fastapi import APIRouter

from service.dashboard import explorer, pages, plots, results, study_pages, submit

router = APIRouter(include_in_schema=False)
for module in (pages, plots, results, study_pages, explorer, submit):
    router.include_router(module.router)
