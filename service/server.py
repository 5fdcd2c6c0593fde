"""Running the application under uvicorn: in the foreground (`admeta serve`) or in a thread (`admeta demo`).

Owns the listening socket and where log lines go; `service.logs` owns how they look. Owns the limits on connections too:
how many are open, and how long each may be silent, send a request or not read an answer. uvicorn limits only the
silence between two requests (`timeout_keep_alive`), and its `limit_concurrency` answers 503 but keeps what is open. So
its protocol for HTTP/1.1 is extended here: a connection whose header or body does not end in time, or whose reader
takes nothing, is closed; at the limit, the one that has waited longest for a request makes room. Connections whose
request is being answered stay open.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from admeta.client.errors import ServiceError
from service.api.auth import check_start
from service.app import create_app
from service.database.schema import prepare
from service.logs import configure
from service.settings import Settings, SettingsError, make_home

log = logging.getLogger(__name__)

LISTENER = "ADMETA_LISTENER"
"""Environment variable by which a program gives its successor the listening socket's file descriptor."""

_START_TIMEOUT_S = 600.0
_RAY_IS_UP_S = 30.0
_MAX_OPEN_FILES = 65_536  # some systems grant a thousand million, and programs that close all of them take minutes


class _Server(uvicorn.Server):
    """Tells where it serves once it does, and ends the streams of events when it stops.

    Attributes:
        needs_new_process: it stopped because Ray can only continue in a new process.
        fault: it stopped because of this error.
    """

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        limits = limits_of_this_process()
        config = uvicorn.Config(
            app,
            http=limited_protocol(limits),
            backlog=limits.backlog,
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=75,  # longer than clients and proxies keep theirs, or a request meets a closing one
        )
        super().__init__(config)
        self._app = app
        self.settings = settings
        self.needs_new_process = False
        self.fault: ServiceError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            where = f"home {self.settings.home}, database {self.settings.safe_database_url}"
            log.info("serving at %s (documentation at /docs); %s", self.settings.url, where)
            settle_memory()
            asyncio.get_running_loop().call_later(_RAY_IS_UP_S, settle_memory)

    async def on_tick(self, counter: int) -> bool:
        supervisor = self._app.state.supervisor
        self.needs_new_process, self.fault = supervisor.needs_new_process(), supervisor.fault()
        return await super().on_tick(counter) or self.needs_new_process or self.fault is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.feed.close()  # the server waits for its connections, and streams of events have no end
        await super().shutdown(sockets)


def settle_memory() -> None:
    """Exclude the objects made at start-up from garbage collection.

    Modules and routes are half a million objects, and a request that meets a full collection of them waits for a fifth
    of a second.
    """
    gc.collect()
    gc.freeze()


class StartError(ServiceError):
    """The service did not start."""


def run(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM. Where the embedded Ray is lost, the process is replaced and serves on.

    Raises:
        SettingsError: the address is taken or not this machine's.
        StartError: the application did not start; the log says why.
        DatabaseFileError: it stopped because the database file was deleted, replaced or damaged.
    """
    with listen(settings) as (server, listener):
        _start_log(settings, console=True)
        kept = os.dup(listener.fileno())  # uvicorn closes the one it is given
        with suppress(KeyboardInterrupt):  # uvicorn repeats the Ctrl-C that it has obeyed
            server.run(sockets=[listener])
            if server.needs_new_process:
                replace_process(kept)
        os.close(kept)
        if not server.started:
            raise _start_error(settings)
        if server.fault is not None:
            raise server.fault


@contextmanager
def running(settings: Settings) -> Iterator[str]:
    """The service in a thread of this process; gives its address, and stops it at the end.

    Raises:
        SettingsError, StartError: as `run`.
    """
    with listen(settings) as (server, listener):
        _start_log(settings, console=False)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="admeta-service", daemon=True)
        thread.start()
        try:
            _wait_for_start(server, thread, settings)
            yield server.settings.url
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def listen(settings: Settings) -> Iterator[tuple[_Server, socket.socket]]:
    """A server that is ready to run, with its socket. Prepares the database first; its errors reach the caller."""
    _raise_open_files_limit()
    with inherited_listener() or _bind(settings) as listener:
        make_home(settings.home)
        prepare(settings.database_url)
        check_start(settings)
        yield _Server(create_app(settings), replace(settings, port=listener.getsockname()[1])), listener


def _start_log(settings: Settings, *, console: bool) -> None:
    path = log_file(settings.home)
    try:
        configure(path, format=settings.log_format, console=console)
    except OSError as error:
        raise SettingsError(
            f"log '{path}' cannot be written: {error.strerror}.",
            hint="Let this user write it, or choose another home with --home or ADMETA_HOME.",
        ) from None


def _raise_open_files_limit() -> None:
    """Allow this process, and those that it starts, as many open files and connections as the system grants it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _bind(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(
                f"port {settings.port} of {settings.host} is in use, perhaps by another `admeta serve`.",
                hint=f"Open {settings.url}, or serve on another port: --port {settings.port + 1} (0: any free one).",
            ) from None
        raise SettingsError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}.",
            hint="Choose another --host or --port; ports under 1024 need root.",
        ) from None
    return listener


def _wait_for_start(server: uvicorn.Server, thread: threading.Thread, settings: Settings) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise _start_error(settings)
        time.sleep(0.05)


def _start_error(settings: Settings) -> StartError:
    path = log_file(settings.home)
    return StartError("the service did not start.", hint=f"The reason is at the end of {path}.")


def log_file(home: Path) -> Path:
    """Where the service's log lines go."""
    return home / "logs" / "service.log"


def replace_process(listener: int) -> NoReturn:
    """Run the same command again in this process, with the same listening socket, where requests wait meanwhile.

    Ray's core ends a process as soon as it leaves a node that has died; nothing within the process can prevent it.

    Args:
        listener: the socket's file descriptor.
    """
    os.set_inheritable(listener, True)  # noqa: FBT003 - the standard library's signature
    os.environ[LISTENER] = str(listener)
    log.info("the service restarts in its own process")
    logging.shutdown()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def inherited_listener() -> socket.socket | None:
    """The socket that `replace_process` left open; None where there was none. Also reaps that program's children."""
    number = os.environ.pop(LISTENER, None)
    if number is None:
        return None
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    try:
        listener = socket.socket(fileno=int(number))
    except (ValueError, OSError):
        return None
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.detach()
        return None
    listener.set_inheritable(False)
    return listener


MAX_CONNECTIONS = 4096
MAX_BACKLOG = 2048


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits on the connections of one server.

    Attributes:
        max_open: connections at a time; one more closes the one that has waited longest for a request.
        backlog: connections that the event loop accepts in one step, and that the system keeps waiting.
        header_s: seconds from the connection, or from the first byte of a later request, until its header is complete.
        body_s: seconds from the header until the request's body is complete.
        write_s: seconds that a reader takes nothing of an answer.
    """

    max_open: int = MAX_CONNECTIONS
    backlog: int = MAX_BACKLOG
    header_s: float = 15.0
    body_s: float = 60.0
    write_s: float = 60.0


def limits_for(open_files: int) -> ConnectionLimits:
    """Limits under which the process keeps at least a quarter of its descriptors for files, SQLite and Ray."""
    return ConnectionLimits(
        max_open=max(min(MAX_CONNECTIONS, open_files // 2), 1), backlog=max(min(MAX_BACKLOG, open_files // 4), 1)
    )


def limits_of_this_process() -> ConnectionLimits:
    """Limits that follow from how many files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits_for(MAX_CONNECTIONS * 2 if soft == resource.RLIM_INFINITY else soft)


class _Phase(Enum):
    """What a connection waits for."""

    HEADER = "a request's header"
    BODY = "the rest of a request's body"
    ANSWER = "its answer"
    IDLE = "another request"


def limited_protocol(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """uvicorn's HTTP/1.1 protocol with these limits, for one server: what `uvicorn.Config(http=...)` takes."""
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits, "waiting": {}})


class _LimitedProtocol(H11Protocol):
    limits: ClassVar[ConnectionLimits]
    waiting: ClassVar[dict[H11Protocol, None]]
    """The server's connections without a complete request, the one that has waited longest first."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._waits_for: tuple[_Phase, object] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update()
        if len(self.connections) > self.limits.max_open:
            oldest = next(iter(self.waiting))  # this one itself, where all others are being answered
            del self.waiting[oldest]
            self.connections.discard(oldest)
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self.waiting.pop(self, None)
        for timer in (self._deadline, self._write_deadline):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _update(self) -> None:
        """Start the time that belongs to a new phase; bytes within one do not prolong it."""
        phase = self._phase()
        if self._waits_for == (phase, self.cycle) or self.transport.is_closing():
            return
        self._waits_for = phase, self.cycle
        self.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
        if phase is not _Phase.ANSWER:
            self.waiting[self] = None
            seconds = {
                _Phase.HEADER: self.limits.header_s,
                _Phase.BODY: self.limits.body_s,
                _Phase.IDLE: self.timeout_keep_alive + self.limits.header_s,  # uvicorn closes it before
            }[phase]
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _phase(self) -> _Phase:
        if self.cycle is None:
            return _Phase.HEADER
        if not self.cycle.response_complete:
            return _Phase.BODY if self.cycle.more_body else _Phase.ANSWER
        if self.conn.their_state is h11.SEND_BODY:  # of a request that was answered before its body was read
            return _Phase.BODY
        return _Phase.HEADER if self.conn.trailing_data[0] else _Phase.IDLE
