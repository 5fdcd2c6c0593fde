"""Fifty followers and fifty pollers beside a running study: are trials delayed, does anything fail, are events late?

    python -m benchmarks.followers [--clients 50] [--trials 12] [--slots 4] [--postgres URL]

The service runs in a process of its own, the clients in another, which gives way to all others (nice 19): real ones are
on other machines. Trials are played by threads as a driver would record them: created, started, a point every 0.1 s of
"training", finished. The same trials run without and with the clients, interleaved; a trial's time is from its creation
to its end, its writes included. The seconds of processor that the service took say what the clients cost, also on a
machine that is busy otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from admeta.client.models import NodeView
from search.definition import StudyDefinition
from search.records import Lease, Point, RunOutcome
from search.states import RunState, Stage, StudyState
from service.app import create_app
from service.database import SqlStore, make_engine, prepare
from service.database.studies import create_study
from service.settings import load

N_POINTS = 20
PACE_S = 0.1
POLL_EVERY_S = 1.0


class NoSupervisor:
    """The trials are played here, not by drivers."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def notice(self, study_id: str) -> None: ...

    def ray_status(self) -> str:
        return "ok"

    def needs_new_process(self) -> bool:
        return False

    def fault(self) -> None:
        return None

    def nodes(self) -> list[NodeView]:
        return []


def serve(home: str, database_url: str, port: int) -> None:
    """The service, until it is terminated."""
    settings = load({}, home=Path(home), database_url=database_url, port=port)
    app = create_app(settings, supervisor=NoSupervisor())
    uvicorn.run(app, host="127.0.0.1", port=port, log_config=None, access_log=False, timeout_keep_alive=75)


def clients(url: str, study: str, n: int, stop: Event, results: Any) -> None:
    """Followers and pollers, until told to stop; puts event delays, poll times and errors."""
    os.nice(19)
    delays: list[float] = []
    polls: list[float] = []
    errors: list[str] = []

    async def follow(http: httpx.AsyncClient) -> None:
        async with http.stream("GET", f"/v1/studies/{study}/events", timeout=None) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    at = datetime.fromisoformat(json.loads(line.removeprefix("data: "))["at"])
                    delays.append((datetime.now(UTC) - at).total_seconds())

    async def poll(http: httpx.AsyncClient, number: int) -> None:
        await asyncio.sleep(number / n * POLL_EVERY_S)
        while True:
            started = time.perf_counter()
            response = await http.get(f"/v1/studies/{study}/trials?limit=20" if number % 2 else f"/v1/studies/{study}")
            polls.append(time.perf_counter() - started)
            if not response.is_success:
                errors.append(response.text)
            await asyncio.sleep(POLL_EVERY_S)

    async def run() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as http:
            tasks = [asyncio.create_task(follow(http)) for _ in range(n)]
            tasks += [asyncio.create_task(poll(http, number)) for number in range(n)]
            while not stop.is_set():
                await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            errors.extend(repr(error) for error in ended if not isinstance(error, asyncio.CancelledError))

    asyncio.run(run())
    results.put((delays, polls, errors))


def play(store: SqlStore, lease: Lease, search_id: int, number: int) -> float:
    """One trial; its wall seconds."""
    started = time.perf_counter()
    run = store.create_run(lease, search_id, trial_number=number, stage=Stage.SEARCH, seed=0, params={"lr": 0.1})
    store.start_attempt(lease, run.id)
    for epoch in range(1, N_POINTS + 1):
        time.sleep(PACE_S)
        point = Point(epoch=epoch, step=epoch, value=0.5, metrics={"val_accuracy": 0.5, "val_loss": 1.0}, lr=0.1)
        store.add_points(lease, run.id, [point])
    store.finish_run(lease, run.id, RunOutcome(state=RunState.COMPLETE, value=0.5))
    return time.perf_counter() - started


def trials(store: SqlStore, name: str, *, n: int, slots: int) -> Iterator[list[float]]:
    """A study whose trials are played on demand: yields once when it is there, then the times of its trials."""
    raw = {"name": name, "task": {"name": "digits"}, "optimizers": [{"name": "sgdm"}]}
    view, _ = create_study(store.engine, StudyDefinition.model_validate(raw))
    lease = store.acquire_lease(view.id, owner="benchmark", ttl_s=3600)
    assert lease is not None
    store.set_study_state(lease, StudyState.RUNNING)
    (search,) = store.searches(view.id)
    yield []
    with ThreadPoolExecutor(slots) as pool:
        yield list(pool.map(lambda number: play(store, lease, search.id, number), range(n)))


@contextmanager
def running(target: Any, *args: Any) -> Iterator[int]:
    """A process for the time of the block; its pid."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    process.start()
    assert process.pid is not None
    try:
        yield process.pid
    finally:
        process.terminate()
        process.join()


def measure(
    store: SqlStore, url: str, name: str, arguments: argparse.Namespace, n_clients: int, service: int
) -> tuple[list[float], list[float], list[float], list[str], float]:
    """Trial times, event delays, poll times, errors and the service's share of a processor, with so many clients."""
    study = trials(store, name, n=arguments.trials, slots=arguments.slots)
    next(study)
    if n_clients == 0:
        return next(study), [], [], [], 0.0
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.Queue()
    with running(clients, url, name, n_clients, stop, results):
        while f"admeta_event_followers {float(n_clients)}" not in httpx.get(f"{url}/metrics", timeout=30).text:
            time.sleep(0.2)
        began, used = time.perf_counter(), processor_s(service)
        times = next(study)
        spent = (processor_s(service) - used) / (time.perf_counter() - began)
        time.sleep(1)
        stop.set()
        delays, polls, errors = results.get(timeout=60)
        return times, delays, polls, errors, spent


def processor_s(pid: int) -> float:
    """Seconds of processor that a process has had (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--postgres", help="an empty database; default: SQLite in a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
        chosen.close()
        database_url = arguments.postgres or f"sqlite:///{home}/admeta.sqlite3"
        prepare(database_url)
        store = SqlStore(make_engine(database_url))
        url = f"http://127.0.0.1:{port}"
        with running(serve, home, database_url, port) as service:
            wait_for(url)
            alone: list[float] = []
            beside: list[float] = []
            delays: list[float] = []
            polls: list[float] = []
            errors: list[str] = []
            spent: list[float] = []
            for _ in range(arguments.repeats):
                alone += measure(store, url, f"alone-{uuid.uuid4().hex[:8]}", arguments, 0, service)[0]
                found = measure(store, url, f"beside-{uuid.uuid4().hex[:8]}", arguments, arguments.clients, service)
                beside, delays, polls, errors = (
                    beside + found[0],
                    delays + found[1],
                    polls + found[2],
                    errors + found[3],
                )
                spent.append(found[4])
    slower = statistics.mean(beside) / statistics.mean(alone) - 1
    print(f"{store.engine.dialect.name}, {arguments.clients} followers and {arguments.clients} pollers (1/s each)")
    print(f"  a trial alone    mean {statistics.mean(alone):.3f} s, longest {max(alone):.3f} s")
    print(f"  beside clients   mean {statistics.mean(beside):.3f} s, longest {max(beside):.3f} s: {slower:+.1%}")
    print(f"  events received  {len(delays)}, {percentile(delays, 0.5):.3f} s old at the median, ", end="")
    print(f"p95 {percentile(delays, 0.95):.3f} s")
    print(f"  polls            {len(polls)}, p50 {1e3 * percentile(polls, 0.5):.0f} ms, ", end="")
    print(f"p95 {1e3 * percentile(polls, 0.95):.0f} ms")
    print(f"  service          {statistics.mean(spent):.2f} of a processor")
    print(f"  errors           {len(errors)} {errors[:1] or ''}")


def wait_for(url: str) -> None:
    """Until the service answers."""
    for _ in range(300):
        try:
            httpx.get(f"{url}/healthz")
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit("the service did not start")


if __name__ == "__main__":
    main()
