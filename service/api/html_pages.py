"""The two pages that need no token: the API's documentation, and signing in with a browser.

The documentation is read from /openapi.json; FastAPI's own page loads its parts from a CDN. The sign-in page takes an
access token and keeps it in a cookie. The cookie is the token. It is HttpOnly, so no script reads it; SameSite=Lax, so
other sites send it with plain links only, and what a link reads changes nothing; the browser deletes it when it closes.
A change that another site's page requests is refused, with or without a cookie (`service.api.middleware`).
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import Scope

from service.api.errors import ApiError
from service.settings import Settings

if TYPE_CHECKING:
    from service.api.auth import TokenCheck

COOKIE = "admeta_token"
router = APIRouter(include_in_schema=False)
_MAX_FORM, _MAX_FIELDS = 10_000, 10
_OWN_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]*")


@router.get("/docs")
def get_docs() -> Response:
    """The documentation page."""
    page, policy = _template("docs.html")
    return Response(page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": policy})


@router.get("/signin")
def get_sign_in(request: Request) -> Response:
    """The sign-in page; an open service has no use for it."""
    settings: Settings = request.app.state.settings
    return sign_in_page(request.scope, "/") if settings.tokens_required else RedirectResponse("/", status_code=303)


@router.post("/signin")
async def sign_in(request: Request) -> Response:
    """Keep the token that the form sent, and go where the visitor wanted to."""
    try:
        form = parse_qs((await request.body())[:_MAX_FORM].decode("utf-8", "replace"), max_num_fields=_MAX_FIELDS)
    except ValueError:  # too many fields
        form = {}
    token, target = form.get("token", [""])[0].strip(), form.get("next", ["/"])[0]
    check: TokenCheck = request.app.state.token_check
    address = request.client.host if request.client else "unknown"
    try:
        await check(request.app.state.engine, token, address=address)
    except ApiError as error:
        response = sign_in_page(request.scope, target, status=error.status, message=error.view.detail)
        response.headers.update(error.headers)
        return response
    response = RedirectResponse(_own(target), status_code=303)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, token, path=f"{root(request.scope)}/", httponly=True, samesite="lax", secure=secure)
    return response


@router.post("/signout")
def sign_out(request: Request) -> Response:
    """Delete the token in this browser; it works elsewhere until it is revoked."""
    response = RedirectResponse("/signin", status_code=303)
    response.delete_cookie(COOKIE, path=f"{root(request.scope)}/", httponly=True, samesite="lax")
    return response


def root(scope: Scope) -> str:
    """The path under which a proxy shows the service; empty where there is none."""
    settings: Settings = scope["app"].state.settings
    return settings.root_path


def sign_in_page(scope: Scope, target: str, *, status: int = 200, message: str = "") -> Response:
    """The sign-in page.

    Args:
        scope: of the request.
        target: where to go afterwards: a path of this service, anything else becomes "/".
        message: what went wrong before.
    """
    template, policy = _template("signin.html")
    content = template.replace("{{root}}", root(scope)).replace("{{message}}", html.escape(message))
    content = content.replace("{{next}}", html.escape(_own(target)))
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store"}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="admeta"'
    return Response(content, status_code=status, media_type="text/html; charset=utf-8", headers=headers)


def is_page_visit(scope: Scope) -> bool:
    """Whether a person's browser asks for a page."""
    return scope["method"] == "GET" and prefers_html(scope)


def prefers_html(scope: Scope) -> bool:
    """Whether the request prefers HTML, as a browser's visits and forms do; scripts and the client prefer JSON."""
    first = Headers(scope=scope).get("accept", "").split(",")[0]
    return first.split(";")[0].strip().lower() == "text/html"


def _own(target: str) -> str:
    return target if _OWN_PATH.fullmatch(target) else "/"


@cache
def _template(name: str) -> tuple[str, str]:
    """A page of this package, and the policy that lets its own script and style run and nothing else."""
    content = resources.files("service.api").joinpath("pages", name).read_text(encoding="utf-8")
    policy = "default-src 'none'; img-src data:; base-uri 'none'; frame-ancestors 'none'; "
    for tag, text in re.findall(r"<(script|style)>(.*?)</\1>", content, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        policy += f"{tag}-src 'sha256-{digest}'; "
    return content, policy + ("form-action 'self'" if "<form" in content else "connect-src 'self'; form-action 'none'")
