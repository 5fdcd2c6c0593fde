"""What a service does that loses its database file, or may open few files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.database.errors import RESTORE_HINT
from service.database.schema import prepare
from tests.chaos.installation import Service
from tests.chaos.processes import descendants, is_alive
from tests.chaos.studies import quiet_study
from tests.machine import PATIENCE_S, wait_until


def replaced(file: Path, other: Path) -> None:
    other.rename(file)


def emptied(file: Path, _other: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("change", [replaced, emptied])
def test_a_service_whose_database_file_is_gone_stops_with_the_reason(
    tmp_path: Path, change: Callable[[Path, Path], None]
) -> None:
    home = tmp_path / "home"
    file, other = home / "admeta.sqlite3", tmp_path / "other.sqlite3"
    prepare(f"sqlite:///{other}")
    content = other.read_bytes()
    service = Service(home, database_url=f"sqlite:///{file}")
    with service:
        with service.client as client:
            study = client.submit(quiet_study("gone")).study
            wait_until(lambda: client.study(study.id).state == "RUNNING", what="it runs")
        children = descendants(service.pid)
        change(file, other)
        assert service.wait(timeout_s=PATIENCE_S) == 1
    wait_until(lambda: not any(map(is_alive, children)), what="no child is left")
    reason = (home / "output.log").read_text()
    if change is emptied:
        # Damaged; or the first process that closes the empty file takes the log from under the others.
        assert re.search(r"The database file .*(damaged|write-ahead log was deleted)", reason)
        assert RESTORE_HINT in reason
        assert b"COMPLETED" not in file.read_bytes()
    else:
        assert re.search(f"The database file {file} or its write-ahead log was deleted", reason)
        assert RESTORE_HINT in reason
        assert file.read_bytes() == content


def test_a_service_raises_its_limit_of_open_files() -> None:
    code = (
        "import resource, service.server as server; server._raise_open_files_limit();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    for limits, raised in (("256:4096", (4096, 4096)), ("256:256", (256, 256))):
        command = ["prlimit", f"--nofile={limits}", sys.executable, "-c", code]
        printed = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout
        assert printed.strip() == str(raised)
