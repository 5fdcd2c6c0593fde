"""optuna-dashboard on our database, where it is installed (the extra `dashboard`): Optuna's own plots of each search.

Its page asks for absolute addresses, so it cannot be under a prefix; this module says which addresses are its own.
`service.api.auth` lets everybody read who may read, but only admins change something through it, because it writes
into Optuna's tables without a running search noticing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from typing import Annotated, Any, cast

import anyio
from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from admeta.client.models import ErrorView
from service.api.errors import answer
from service.api.middleware import Middleware
from service.api.requests import Database
from service.database import queries
from service.database.optuna_storage import optuna_storage, optuna_study_id
from service.database.retry import REQUEST

HOME = "/dashboard"
ROOTS = frozenset({"dashboard", "api", "csv", "static", "artifacts"})
"""First parts of its addresses; no address of ours begins with one."""
_WORKERS = 4
_FAULT = ErrorView(
    error="optuna_dashboard_failed",
    detail="optuna-dashboard could not answer this.",
    hint=f"Check the address; {HOME} lists Optuna's studies. Our own pages and /v1 do not depend on it.",
)

router = APIRouter(include_in_schema=False)


@cache
def is_installed() -> bool:
    """Whether the extra `dashboard` is there."""
    return all(find_spec(name) is not None for name in ("optuna_dashboard", "a2wsgi"))


def is_path(path: str) -> bool:
    """Whether the address is optuna-dashboard's."""
    return path.lstrip("/").partition("/")[0] in ROOTS


@router.get("/studies/{study}/searches/{label}/optuna")
def open_search(engine: Database, study: str, label: Annotated[str, Path(max_length=100)]) -> RedirectResponse:
    """Redirect to the search in optuna-dashboard; to its front page where the search has not begun."""
    names = {search.label: search.optuna_study for search in queries.get_study_view(engine, study).searches}
    number = optuna_study_id(engine, names[label]) if label in names else None
    return RedirectResponse(HOME if number is None else f"{HOME}/studies/{number}", status_code=307)


class OptunaPages(Middleware):
    """Innermost layer: passes requests for optuna-dashboard's addresses to it, where it is installed.

    It is imported at the first such request, because it loads plots and tables that most services never show.
    """

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._pages: ASGIApp | None = None
        self._starting = anyio.Lock()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_path(scope["path"]) or not is_installed():
            await self.app(scope, receive, send)
            return
        async with self._starting:
            if self._pages is None:
                self._pages = await run_in_threadpool(_start, scope["app"].state.engine)
        await _no_500(self._pages, scope, receive, send)


def _start(engine: Database) -> ASGIApp:
    import optuna_dashboard
    from a2wsgi import WSGIMiddleware

    pages = optuna_dashboard.wsgi(optuna_storage(engine, REQUEST))

    def without_exceptions(environ: Any, start_response: Any) -> Iterable[bytes]:
        """Without the exceptions that it has already answered with a page: a2wsgi would raise them again."""
        return cast(
            Iterable[bytes], pages(environ, lambda status, headers, _error=None: start_response(status, headers))
        )

    return cast(ASGIApp, WSGIMiddleware(without_exceptions, workers=_WORKERS))


async def _no_500(pages: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer its failures, for example for the number of a study that does not exist, in the form of our errors."""
    has_failed = False

    async def checked(message: Message) -> None:
        nonlocal has_failed
        if message["type"] == "http.response.start" and message["status"] >= 500:
            has_failed = True
            await answer(502, _FAULT)(scope, receive, send)
        elif not has_failed:
            await send(message)

    await pages(scope, receive, checked)
