"""A reverse proxy that shows a service under a path, as nginx does with `location /admeta/`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

_HOP = {"connection", "keep-alive", "transfer-encoding"}
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


@contextmanager
def proxied(address: str, root: str, *, strip: bool) -> Iterator[str]:
    """The service at `address` under the path `root` of another address, which is given; elsewhere there is nothing.

    Args:
        strip: take the path away before the service sees it, as `proxy_pass http://…/;` does.
    """
    http = httpx.AsyncClient(base_url=address, timeout=None, follow_redirects=False, trust_env=False)

    async def forward(request: Request) -> Response:
        path = request.url.path
        sent = http.build_request(
            request.method,
            (path.removeprefix(root) if strip else path) + (f"?{request.url.query}" if request.url.query else ""),
            headers=[(name, value) for name, value in request.headers.raw if name.decode() not in _HOP],
            content=await request.body(),
        )
        answer = await http.send(sent, stream=True)
        response = StreamingResponse(
            _parts(answer), status_code=answer.status_code, background=BackgroundTask(answer.aclose)
        )
        response.raw_headers = [pair for pair in answer.headers.raw if pair[0].decode().lower() not in _HOP]
        return response

    app = Starlette(routes=[Route(root + "/{path:path}", forward, methods=_METHODS)])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}{root}"
        finally:
            server.should_exit = True
            thread.join()


async def _parts(answer: httpx.Response) -> AsyncIterator[bytes]:
    async for part in answer.aiter_raw():
        yield part
