"""How fast the service answers from a large database, on SQLite and on PostgreSQL.

    python -m benchmarks.database [--postgres postgresql://user@host/postgres] [--repeats 100] [--large 100000]

Fills a database of each kind (see `benchmarks.large_database`), starts the service on it in a process of its own, asks
for each page many times over HTTP, each time for another study or trial, and prints the median, the 95th percentile
and the slowest in milliseconds, beside the bar. Then it exports a study of very many trials, and prints the time, the
bytes, and how much the service's memory grew at most (Linux). Where no PostgreSQL server is found, SQLite alone.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from benchmarks.followers import NoSupervisor, running, wait_for
from benchmarks.large_database import LARGE, OPTIMIZERS, fill, fill_large_study, print_sizes
from service.app import create_app
from service.database import make_engine, prepare
from service.database.engine import parse_url
from service.server import settle_memory
from service.settings import load

SERVER_URL = os.environ.get("ADMETA_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
BARS_MS = {"comparison": 300}
BAR_MS = 50
SQLITE_MAY_TAKE = 2


def main() -> None:
    """Measure and print."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        measure_all(f"sqlite:///{Path(folder) / 'bench.sqlite3'}", options, bar_factor=SQLITE_MAY_TAKE)
    try:
        with scratch_database(options.postgres) as url:
            measure_all(url, options, bar_factor=1)
    except OperationalError as error:
        print(f"no PostgreSQL server: {str(error.orig).splitlines()[0]}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgres", default=SERVER_URL, help="a server; a database is made there and dropped")
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=25, help="of each of a study's four optimizers")
    parser.add_argument("--points", type=int, default=10, help="of each run")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--large", type=int, default=100_000, help="trials of the study that is exported; 0: no export")
    return parser.parse_args()


@contextmanager
def scratch_database(server_url: str) -> Iterator[str]:
    """A database on the server, dropped at the end."""
    server = create_engine(parse_url(server_url), isolation_level="AUTOCOMMIT")
    name = f"admeta_bench_{uuid.uuid4().hex[:12]}"
    with server.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
    try:
        yield server.url.set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))
        server.dispose()


def serve(home: str, database_url: str, port: int) -> None:
    """The service, until it is terminated."""
    settings = load({}, home=Path(home), database_url=database_url, port=port)
    app = create_app(settings, supervisor=NoSupervisor())
    settle_memory()
    uvicorn.run(app, host="127.0.0.1", port=port, log_config=None, access_log=False)


def measure_all(url: str, options: argparse.Namespace, *, bar_factor: int) -> None:
    """Fill the database and measure the service on it."""
    prepare(url)
    engine = make_engine(url)
    started = time.perf_counter()
    fill(engine, n_studies=options.studies, n_trials=options.trials, n_points=options.points)
    print(f"\n{engine.dialect.name}: filled in {time.perf_counter() - started:.0f} s")
    print_sizes(engine)
    with tempfile.TemporaryDirectory() as home, socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
        chosen.close()
        address = f"http://127.0.0.1:{port}"
        with running(serve, home, url, port) as service, httpx.Client(base_url=address, timeout=120) as http:
            wait_for(address)
            measure_reads(http, options, bar_factor=bar_factor)
            if options.large:
                fill_large_study(engine, n_trials=options.large)
                measure_exports(http, service)
    engine.dispose()


def measure_reads(http: httpx.Client, options: argparse.Namespace, *, bar_factor: int) -> None:
    """Each page many times."""
    print(f"{'ms':<32}{'median':>9}{'p95':>9}{'max':>9}{'bar':>9}")
    for name, path in reads(http, options).items():
        http.get(path()).raise_for_status()
        times = sorted(timed(http, path()) for _ in range(options.repeats))
        p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
        bar = BARS_MS.get(name, BAR_MS) * bar_factor
        said = "" if p95 <= bar else "  missed"
        print(f"{name:<32}{statistics.median(times):>9.1f}{p95:>9.1f}{times[-1]:>9.1f}{bar:>9}{said}")


def reads(http: httpx.Client, options: argparse.Namespace) -> dict[str, Callable[[], str]]:
    """The pages by name; each gives an address."""
    draw = random.Random(0)

    def study() -> str:
        return f"/v1/studies/study-{draw.randrange(options.studies)}"

    def trial() -> str:
        return f"{study()}/trials/{draw.choice(OPTIMIZERS)}/{draw.randrange(options.trials)}"

    cursors = [""]
    while len(cursors) < options.studies // 50:
        cursors.append(
            http.get("/v1/studies", params={"cursor": cursors[-1]} if cursors[-1] else {}).json()["next_cursor"]
        )
    return {
        "studies": lambda: "/v1/studies",
        "studies, some page": lambda: f"/v1/studies?cursor={draw.choice(cursors[1:])}",
        "studies of an optimizer": lambda: f"/v1/studies?state=COMPLETED&optimizer={draw.choice(OPTIMIZERS)}",
        "studies by name": lambda: f"/v1/studies?name=Y-{draw.randrange(10, 100)}",
        "one study": study,
        "trials": lambda: f"{study()}/trials",
        "trials, best first": lambda: f"{study()}/trials?order=best",
        "runs": lambda: f"{study()}/runs",
        "one trial": trial,
        "comparison": lambda: f"{study()}/comparison",
        "best": lambda: f"/v1/best?task=digits&optimizer={draw.choice(OPTIMIZERS)}",
        "tasks": lambda: "/v1/tasks",
    }


def timed(http: httpx.Client, path: str) -> float:
    """Milliseconds of one request."""
    started = time.perf_counter()
    http.get(path).raise_for_status()
    return 1000 * (time.perf_counter() - started)


def measure_exports(http: httpx.Client, service: int) -> None:
    """The large study in each form, read in small pieces as a slow disk would."""
    print(f"{'export':<12}{'s':>9}{'MB':>9}{'memory grew by at most':>26}")
    for form in ("csv", "json", "parquet"):
        before, started, size = memory_mib(service, "VmRSS"), time.perf_counter(), 0
        Path(f"/proc/{service}/clear_refs").write_text("5")  # VmHWM begins anew
        with http.stream("GET", f"/v1/studies/{LARGE}/export?format={form}") as answer:
            answer.raise_for_status()
            for chunk in answer.iter_raw():
                size += len(chunk)
        grew = memory_mib(service, "VmHWM") - before
        print(f"{form:<12}{time.perf_counter() - started:>9.1f}{size / 1e6:>9.1f}{grew:>22.0f} MiB")


def memory_mib(pid: int, what: str) -> float:
    """VmRSS, the resident memory now; VmHWM, its highest."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


if __name__ == "__main__":
    main()
