"""The service's process made anew in its own place: same command, same pid, same listening socket.

Ray's core ends a process as soon as it leaves a node that has died, and nothing within the process can keep it from
that; a new program in its place it does not reach. Requests that come meanwhile wait at the socket.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from contextlib import suppress
from typing import NoReturn

log = logging.getLogger(__name__)

LISTENER = "ADMETA_LISTENER"
"""Environment variable by which a program tells its successor the listening socket's number."""


def in_place(listener: int) -> NoReturn:
    """Replace this program by a new one that serves on the socket of this number."""
    os.set_inheritable(listener, True)  # noqa: FBT003 - the standard library's signature
    os.environ[LISTENER] = str(listener)
    log.info("the service begins anew in its own process")
    logging.shutdown()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def take_over() -> socket.socket | None:
    """The socket that this process's former program left open; None where there was none.

    Also buries that program's children, which the kernel ended with it.
    """
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
