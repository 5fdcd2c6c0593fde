"""A program that replaces itself keeps its pid and its socket; those who connect meanwhile are served."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from service import server
from tests.machine import PATIENCE_S

PROGRAM = """
import os, socket, subprocess, sys
from service import server
listener = server.inherited_listener()
if listener is None:
    child = subprocess.Popen(["/bin/true"])  # left to the next program, which must bury it
    with socket.create_server(("127.0.0.1", 0)) as first:
        print(os.getpid(), first.getsockname()[1], flush=True)
        sys.stdin.readline()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        server.replace_process(os.dup(first.fileno()))
connection, _ = listener.accept()
try:
    os.waitpid(-1, os.WNOHANG)
    left = "a child is left"
except ChildProcessError:
    left = "none is left"
connection.sendall(f"{os.getpid()} {left} {server.LISTENER in os.environ}".encode())
"""


def test_a_new_program_serves_in_place_of_the_old() -> None:
    program = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid, port = map(int, process.stdout.readline().split())
        # while the old one still runs
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as waiting:
            process.stdin.write("\n")
            process.stdin.flush()
            assert waiting.makefile().read() == f"{pid} none is left False"
    assert process.returncode == 0


@pytest.mark.parametrize("kind", ["none", "word", "closed", "file", "socket"])
def test_only_a_listening_socket_is_taken_over(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as idle, open(os.devnull) as file:
        numbers = {"word": "seven", "closed": "9999", "file": str(file.fileno()), "socket": str(idle.fileno())}
        if kind != "none":
            monkeypatch.setenv(server.LISTENER, numbers[kind])
        assert server.inherited_listener() is None
        assert server.LISTENER not in os.environ
        assert os.fstat(idle.fileno())  # what is not ours stays open
        assert os.fstat(file.fileno())
