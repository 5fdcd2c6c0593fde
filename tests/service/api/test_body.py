"""How a body must be sent."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient

from service.api.middleware import MAX_BODY_BYTES
from service.settings import Settings
from tests.machine import PATIENCE_S, wait_until
from tests.service.fakes import definition, live

JSON = {"Content-Type": "application/json"}
BROKEN = {
    "nothing": (b"", "line 1, column 1"),
    "cut off": (b'{"name": "x",\n "task": ', "line 2"),
    "not UTF-8": (b'{"name": "\xff"}', "byte 10 is 0xff"),
    "not an object": (b"[1, 2]", "a list"),
    "null": (b"null", "null"),
    "text": (b'"study"', "text"),
    "key twice": (b'{"name": "a", "name": "b"}', "'name' appears twice"),
    "comment": (b'{"name": "a"} // no', "line 1"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_body_that_is_no_json_object_gets_400_with_the_place(shared_api: TestClient, case: str) -> None:
    body, part = BROKEN[case]
    response = shared_api.post("/v1/studies", content=body, headers=JSON)
    assert response.status_code == 400, response.text
    assert response.json()["error"] == "invalid_json"
    assert part in response.json()["detail"]


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 50_000, b'{"name":' + b"[" * 40 + b"]" * 40 + b"}"])
def test_deep_nesting_is_refused(shared_api: TestClient, body: bytes) -> None:
    response = shared_api.post("/v1/studies", content=body, headers=JSON)
    assert response.status_code in (400, 413, 422), response.text


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"])
def test_other_content_types_get_415(shared_api: TestClient, content_type: str) -> None:
    """A web page of another site can send these without asking; it cannot send application/json."""
    response = shared_api.post("/v1/studies", content=b"{}", headers={"Content-Type": content_type})
    assert response.status_code == 415
    assert "application/json" in response.json()["detail"]


def test_json_with_a_charset_is_taken(api: TestClient) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    response = api.post("/v1/studies", json=definition(), headers=headers)
    assert response.status_code == 201, response.text


def test_a_body_over_one_mebibyte_gets_413(api: TestClient) -> None:
    response = api.post("/v1/studies", json=definition(description="x" * MAX_BODY_BYTES))
    assert response.status_code == 413
    assert response.json()["error"] == "body_too_large"


def test_a_chunked_body_over_one_mebibyte_gets_413(api: TestClient) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"name": "'
        for _ in range(40):
            yield b"x" * 65_536

    response = api.post("/v1/studies", content=chunks(), headers=JSON)
    assert response.status_code == 413, response.text


@pytest.mark.parametrize("framing", ["announced", "chunked"])
def test_large_bodies_over_a_real_socket(settings: Settings, framing: str) -> None:
    with live(settings) as url:
        address = urlsplit(url)
        head = "POST /v1/studies HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
            if framing == "announced":
                connection.sendall((head + f"Content-Length: {10**12}\r\n\r\n").encode() + b"x" * 1000)
            else:
                connection.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
                try:
                    for _ in range(20):
                        connection.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                except OSError:
                    pass  # the service may close as soon as it has answered
            assert connection.recv(4096).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("path", ["/v1/studies", "/submit", "/signin"])
def test_a_client_that_leaves_during_upload_is_no_failure(
    settings: Settings, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    with live(settings) as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            connection.sendall(head.encode() + b"Content-Length: 9\r\n\r\n{")
            time.sleep(0.3)

        def counted() -> list[str]:
            lines = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text.splitlines()
            return [line for line in lines if 'method="POST"' in line]

        wait_until(lambda: bool(counted()), what="the request is counted")
        lines = counted()
    assert not [line for line in lines if 'status="5' in line]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
