"""Connections that send nothing, or too slowly, are closed, and never keep others out."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from service.app import create_app
from service.server import ConnectionLimits, limited_protocol, limits_for
from service.settings import Settings
from tests.machine import PATIENCE_S
from tests.service.fakes import FakeSupervisor, definition

SHORT = ConnectionLimits(max_open=20, backlog=10, header_s=0.5, body_s=0.8, write_s=0.5)
HEAD = b"POST /v1/studies HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"


@pytest.fixture
def url(settings: Settings) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = create_app(settings, supervisor=FakeSupervisor())
        config = uvicorn.Config(
            app, http=limited_protocol(SHORT), backlog=SHORT.backlog, log_config=None, access_log=False
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the service did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@contextmanager
def _connected(url: str) -> Iterator[socket.socket]:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
        yield connection


def _ask(connection: socket.socket) -> None:
    connection.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    seen = b""
    while not seen.endswith(b"}"):
        seen += connection.recv(4096)
    assert seen.startswith(b"HTTP/1.1 200")


def _wait_for_end(connection: socket.socket) -> None:
    """Read until the service closes the connection; TimeoutError where it does not."""
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass


def _is_refused(connection: socket.socket, data: bytes) -> bool:
    """Send the data every 50 ms, for ten seconds or longer: whether the service has closed the connection by then."""
    try:
        for _ in range(200):
            connection.sendall(data)
            time.sleep(0.05)
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nHost: 127", HEAD + b'{"name":'])
def test_a_connection_without_a_complete_request_is_closed(url: str, sent: bytes) -> None:
    began = time.monotonic()
    with _connected(url) as connection:
        connection.sendall(sent)
        _wait_for_end(connection)
    assert time.monotonic() - began >= SHORT.header_s


@pytest.mark.parametrize("sent", [b"", HEAD])
def test_bytes_one_by_one_do_not_prolong_the_time(url: str, sent: bytes) -> None:
    with _connected(url) as connection:
        connection.sendall(sent)
        assert _is_refused(connection, b"x")


def test_the_header_of_a_second_request_has_its_own_time(url: str) -> None:
    with _connected(url) as connection:
        _ask(connection)
        time.sleep(1)  # idle: longer than a header may take
        _ask(connection)
        connection.sendall(b"GET /livez HTTP/1.1\r\n")
        _wait_for_end(connection)


def test_silent_connections_make_room_and_answers_under_way_stay(url: str) -> None:
    with ExitStack() as held:
        stream = held.enter_context(_connected(url))
        stream.sendall(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200" in stream.recv(4096)
        for _ in range(3 * SHORT.max_open):
            held.enter_context(_connected(url))
        assert httpx.get(f"{url}/livez", timeout=PATIENCE_S).status_code == 200
        response = httpx.post(f"{url}/v1/studies", json=definition(), timeout=PATIENCE_S)
        assert response.status_code == 201
        seen = b""
        while b"study.created" not in seen:
            seen += stream.recv(4096)


def test_a_reader_that_takes_nothing_is_closed(url: str) -> None:
    with _connected(url) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        assert _is_refused(connection, request * 20)  # it asks on and on, and never reads


def test_limits_leave_descriptors_to_the_service() -> None:
    for open_files in (64, 256, 1024, 65_536):
        limits = limits_for(open_files)
        assert limits.max_open + limits.backlog <= 0.75 * open_files


@pytest.mark.slow
def test_300_silent_connections_at_256_open_files(settings: Settings) -> None:
    """A service of its own, which may open 256 files, goes on answering."""
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "import sys, pathlib\n"
        "from service import server\n"
        "from service.app import create_app\n"
        "from tests.service.fakes import FakeSupervisor, settings_in\n"
        "server.create_app = lambda settings: create_app(settings, supervisor=FakeSupervisor())\n"
        "server.run(settings_in(pathlib.Path(sys.argv[1])))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(settings.home)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "serving at" in line)
        url = line.split("serving at ")[1].split()[0]
        threading.Thread(target=process.stderr.read, daemon=True).start()
        with ExitStack() as held, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            for _ in range(300):
                held.enter_context(_connected(url))
            for n in range(20):
                assert client.get("/v1/studies").status_code == 200
                assert httpx.get(f"{url}/readyz", timeout=PATIENCE_S).json()["database"] == "ok"
                assert client.post("/v1/studies", json=definition(f"s{n}")).status_code == 201
            n_open = len(os.listdir(f"/proc/{process.pid}/fd"))
            assert n_open < 230
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
