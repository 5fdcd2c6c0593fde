"""Stand-ins for what the service rests on, and a study to submit."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from admeta.client.models import NodeView
from service.app import create_app
from service.settings import Settings, load

ADDRESS = "http://127.0.0.1"
"""What an application under test is called: an open service answers to this machine's own names only."""


class FakeSupervisor:
    """Runs nothing; studies stay QUEUED."""

    def __init__(self) -> None:
        self.started = False
        self.stopped = False

    def start(self) -> None:
        self.started = True

    def stop(self) -> None:
        self.stopped = True

    def notice(self, study_id: str) -> None: ...

    def ray_status(self) -> str:
        return "ok"

    def needs_new_process(self) -> bool:
        return False

    def fault(self) -> None:
        return None

    def nodes(self) -> list[NodeView]:
        return [
            NodeView(id="a1", host="one", address="10.0.0.1", alive=True, cpus=8, cpus_free=6.5, gpus=1, gpus_free=0.75)
        ]


def settings_in(home: Path) -> Settings:
    return load({}, home=home, port=0)


def definition(name: str = "first", **changes: Any) -> dict[str, Any]:
    """A small study on the toy surfaces."""
    return {
        "name": name,
        "task": {"name": "synthetic", "model": "idle", "epochs": 2},
        "optimizers": [{"name": "admetar"}, {"name": "sgdm"}],
        "budget": {"trials_per_optimizer": 4},
        **changes,
    }


@contextmanager
def live(settings: Settings, supervisor: FakeSupervisor | None = None, *, port: int = 0) -> Iterator[str]:
    """The application behind a real socket, with a fake supervisor; gives its address."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        app = create_app(settings, supervisor=supervisor or FakeSupervisor())
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the service did not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            app.state.feed.close()  # as `service.server` does: streams have no end
            server.should_exit = True
            thread.join()
