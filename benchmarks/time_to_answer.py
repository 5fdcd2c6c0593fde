"""Seconds from submitting a study over REST to its first epoch and to its end, at a new service, and a second time.

    python -m benchmarks.time_to_answer [--study studies/digits.yaml] [--data DIR] [--set PATH=VALUE …] [--repeats 3]

Each repeat starts a service with an empty home and submits the study as soon as REST answers, while Ray still starts
("first"), then once more under another name when it has ended ("second"), and runs `admeta demo` with the study, from
the command to its last line. Times are those of the study's events; the table has medians, and each repeat's figures.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from admeta.client import Client, studyfile
from admeta.client.errors import ClientError

ADMETA = (sys.executable, "-m", "admeta.cli")
MILESTONES = {
    "RUNNING": lambda kind, data: kind == "study.state" and data["state"] == "RUNNING",
    "first trial": lambda kind, _: kind == "trial.created",
    "first epoch": lambda kind, _: kind == "metric",
    "COMPLETED": lambda kind, data: kind == "study.state" and data["state"] == "COMPLETED",
}
"""What is waited for, and the first event that shows it."""
START_TIMEOUT_S = 120.0


@contextmanager
def service(home: Path, data: Path | None) -> Iterator[Client]:
    """`admeta serve` with this home, until the end of the block; its client, as soon as it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ["serve", "--home", str(home), "--port", str(port), *(["--data", str(data)] if data else [])]
    with (home.with_suffix(".log")).open("w") as log, subprocess.Popen([*ADMETA, *arguments], stderr=log) as process:
        try:
            with Client(f"http://127.0.0.1:{port}") as client:
                deadline = time.monotonic() + START_TIMEOUT_S
                while not _answers(client) and time.monotonic() < deadline:
                    time.sleep(0.05)
                yield client
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _answers(client: Client) -> bool:
    try:
        client.health()
    except ClientError:
        return False
    return True


def time_study(client: Client, definition: dict[str, Any]) -> dict[str, float]:
    """Seconds from the study's submission to each milestone; raises SystemExit where the study does not complete."""
    study = client.submit(definition).study
    seen: dict[str, float] = {}
    for event in client.events(study.id):
        for name, shows in MILESTONES.items():
            if name not in seen and shows(event.kind, event.data):
                seen[name] = (event.at - study.created_at).total_seconds()
    if seen.keys() != MILESTONES.keys():
        raise SystemExit(f"study {study.name} did not complete: {client.study(study.id).reason}")
    return seen


def time_demo(home: Path, study: Path) -> float:
    """Seconds of `admeta demo`, from the command to its end."""
    begin = time.perf_counter()
    subprocess.run([*ADMETA, "demo", "--home", str(home), "--study", str(study)], check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, default=Path("studies/digits.yaml"))
    parser.add_argument("--data", type=Path, help="folder of data sets")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="a change of the definition")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    definition = studyfile.with_changes(studyfile.load(arguments.study), arguments.set)
    rows: dict[str, list[float]] = {}
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as folder:
            with service(Path(folder) / "home", arguments.data) as client:
                for which in ("first", "second"):
                    seconds = time_study(client, {**definition, "name": which})
                    for milestone, spent in seconds.items():
                        rows.setdefault(f"{which}: submit to {milestone}", []).append(spent)
            if arguments.data is None and not arguments.set:
                rows.setdefault("admeta demo", []).append(time_demo(Path(folder) / "demo", arguments.study))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{arguments.study}, {os.cpu_count()} CPUs, load {load}, medians of {arguments.repeats}")
    for name, values in rows.items():
        print(f"{name:32} {statistics.median(values):7.1f} s   ({', '.join(f'{value:.1f}' for value in values)})")


if __name__ == "__main__":
    main()
