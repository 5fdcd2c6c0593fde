"""Signing in with a browser: a page that takes an access token and keeps it in a cookie.

The cookie is the token. It is HttpOnly, so no script reads it; SameSite=Lax, so of other sites only plain links send
it, and what a link reads changes nothing; it goes when the browser closes. What changes something is refused when it
comes from another page, with or without a cookie (`service.api.hosts`).
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from functools import cache
from importlib import resources
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import Scope

from service.api.gate import Gate, Refusal
from service.settings import Settings

SIGN_IN = "/signin"
SIGN_OUT = "/signout"
COOKIE = "admeta_token"

router = APIRouter(include_in_schema=False)
_MAX_FORM, _MAX_FIELDS = 10_000, 10
_OWN_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]*")


@router.get(SIGN_IN)
def get_page(request: Request) -> Response:
    """The page; on an open service there is nothing to sign in to."""
    settings: Settings = request.app.state.settings
    return page("/") if settings.tokens_required else RedirectResponse("/", status_code=303)


@router.post(SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Keep the token that the form sent, and go where the visitor wanted to."""
    try:
        form = parse_qs((await request.body())[:_MAX_FORM].decode("utf-8", "replace"), max_num_fields=_MAX_FIELDS)
    except ValueError:  # too many fields
        form = {}
    token, target = form.get("token", [""])[0].strip(), form.get("next", ["/"])[0]
    gate: Gate = request.app.state.gate
    address = request.client.host if request.client else "unknown"
    found = await gate.check(request.app.state.engine, token, address=address)
    if isinstance(found, Refusal):
        response = page(target, status=found.status, message=found.view.detail)
        response.headers.update(found.headers)
        return response
    response = RedirectResponse(_own(target), status_code=303)
    response.set_cookie(COOKIE, token, httponly=True, samesite="lax", secure=request.url.scheme == "https")
    return response


@router.post(SIGN_OUT)
def sign_out() -> Response:
    """Forget the token in this browser; it works elsewhere until it is revoked."""
    response = RedirectResponse(SIGN_IN, status_code=303)
    response.delete_cookie(COOKIE, httponly=True, samesite="lax")
    return response


def page(target: str, *, status: int = 200, message: str = "") -> Response:
    """The sign-in page.

    Args:
        target: where to go afterwards: a path of this service, anything else becomes "/".
        message: what went wrong before.
    """
    template, policy = _template()
    content = template.replace("{{next}}", html.escape(_own(target))).replace("{{message}}", html.escape(message))
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store"}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="admeta"'
    return Response(content, status_code=status, media_type="text/html; charset=utf-8", headers=headers)


def is_page_visit(scope: Scope) -> bool:
    """Whether a person's browser asks for a page: it prefers HTML, where scripts and the client prefer JSON."""
    first = Headers(scope=scope).get("accept", "").split(",")[0]
    return scope["method"] == "GET" and first.split(";")[0].strip().lower() == "text/html"


def _own(target: str) -> str:
    return target if _OWN_PATH.fullmatch(target) else "/"


@cache
def _template() -> tuple[str, str]:
    content = resources.files("service.api").joinpath("pages/signin.html").read_text(encoding="utf-8")
    style = re.search(r"<style>(.*?)</style>", content, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    return content, policy
