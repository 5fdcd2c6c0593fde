"""Proxies and certificates of the environment: loopback goes direct, every error names the proxy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from admeta.client import AsyncClient, Client, ClientError
from admeta.client.exchange import find_route

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


@pytest.fixture
def proxy() -> Iterator[str]:
    """A proxy that reaches nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://user:secret@127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"])
@pytest.mark.parametrize("value", ["http://127.0.0.1:9", "socks5://127.0.0.1:9", "foo://x", "127.0.0.1:9"])
def test_this_machine_is_asked_directly(environment: pytest.MonkeyPatch, name: str, value: str) -> None:
    environment.setenv(name, value)
    for url in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "http://127.9.9.9:1", None):
        assert find_route(url).proxy is None


def _ask(kind: type[Client | AsyncClient]) -> None:
    client = kind("http://svc:8000")
    if isinstance(client, Client):
        client.tasks()
    else:
        asyncio.run(client.tasks())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:9", "the proxy socks5://127.0.0.1:9 (ALL_PROXY) cannot be used"),
        ("HTTP_PROXY", "foo://x", "the proxy foo://x (HTTP_PROXY) cannot be used"),
        ("HTTP_PROXY", "http://u:secret@127.0.0.1:9", "through the proxy http://u:***@127.0.0.1:9 (HTTP_PROXY)"),
        ("http_proxy", "127.0.0.1:9", "http://svc:8000 through the proxy http://127.0.0.1:9 (http_proxy)"),
        ("HTTP_PROXY", "http://[::1", "(HTTP_PROXY)"),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_proxy_that_does_not_work_is_named(
    environment: pytest.MonkeyPatch, kind: type[Client | AsyncClient], name: str, value: str, said: str
) -> None:
    environment.setenv(name, value)
    with pytest.raises(ClientError) as caught:
        _ask(kind)
    assert said in caught.value.detail
    assert "NO_PROXY=svc" in caught.value.hint
    assert (caught.value.status, caught.value.error) == (None, "unreachable")
    assert "secret" not in str(caught.value)


def test_an_answer_of_the_proxy_names_it(environment: pytest.MonkeyPatch, proxy: str) -> None:
    environment.setenv("HTTP_PROXY", proxy)
    for ask in (Client.tasks, Client.health):
        with Client("http://svc:8000") as client, pytest.raises(ClientError) as caught:
            ask(client)
        assert "at http://svc:8000 through the proxy http://user:***@127.0.0.1" in caught.value.detail
        assert "503" in caught.value.detail
        assert "NO_PROXY=svc" in caught.value.hint


def test_no_proxy_excludes_a_host(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTP_PROXY", "http://p:1")
    assert find_route("http://svc:8000").proxy == "http://p:1"
    environment.setenv("NO_PROXY", "other,svc")
    assert find_route("http://svc:8000").proxy is None


def test_certificates_that_are_not_there(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("SSL_CERT_FILE", "/nowhere/cert.pem")
    with pytest.raises(ClientError, match="certificates to check https://svc") as caught:
        Client("https://svc:8000")
    assert "SSL_CERT_FILE" in caught.value.hint
    Client("http://svc:8000").close()  # needs none


def test_a_password_in_the_address_is_not_shown() -> None:
    with pytest.raises(ClientError) as caught, Client("http://user:sec@ret@127.0.0.1:9") as client:
        client.tasks()
    assert "ret" not in caught.value.detail
    assert "user:***@127.0.0.1:9" in caught.value.detail
