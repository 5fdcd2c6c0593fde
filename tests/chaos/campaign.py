"""Rounds of kills against targets on one database: strike, look, let it recover, and audit at the end."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from sqlalchemy import Engine, text

from service.database.engine import make_engine
from tests.chaos import outages, studies
from tests.chaos.installation import Service, TwoNodes, two_nodes
from tests.chaos.ledger import Expected, RunKey, Snapshot, Verdict, audit, look
from tests.chaos.postgres import Postgres, own_postgres
from tests.chaos.processes import descendants, is_alive, kill, titled
from tests.machine import wait_until

STUCK_AFTER_S = 300.0
"""How long nothing at all may happen in a study before it counts as stuck: a busy machine is slow, but goes on."""
OUTAGE_S = 20.0
EXPECTED = Expected(
    n_trials=studies.N_TRIALS,
    n_confirm_runs=len(studies.SEEDS),
    n_epochs=studies.N_EPOCHS,
    steps_per_epoch=studies.STEPS_PER_EPOCH,
)


class Target(StrEnum):
    """What is killed, or taken away for a while."""

    SERVICE = "service"
    DRIVER = "driver"
    WORKER = "worker"
    NODE = "node"
    DATABASE_5S = "database, 5 s"
    DATABASE_60S = "database, 60 s"
    DISK_FULL = "full disk, 20 s"
    READ_ONLY = "read-only, 20 s"
    DESCRIPTORS = "no descriptors, 20 s"
    IDLE_CONNECTIONS = "300 idle connections at 256 open files, 20 s"
    CLOCK_STEP = "clock, 1 h back or forward"

    @property
    def kills_per_study(self) -> int:
        """Rounds for which one study lasts."""
        return {Target.WORKER: 6, Target.DATABASE_60S: 2}.get(self, 3)

    @property
    def lacks(self) -> str | None:
        """What this machine lacks for it; None where nothing."""
        if self is Target.CLOCK_STEP and shutil.which("cc") is None:
            return "there is no C compiler"
        if self in (Target.DISK_FULL, Target.READ_ONLY) and not outages.can_mount():
            return "only root can mount a disk, and give up its own rights"
        return None


class Database(StrEnum):
    """Where the study is kept."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass(kw_only=True)
class Tally:
    """A row of the table."""

    targets: frozenset[Target]
    database: Database
    n_rounds: int = 0
    n_studies: int = 0
    n_runs: int = 0
    n_lost: int = 0
    n_repeated: int = 0
    n_stuck: int = 0
    n_curves: int = 0
    n_resumed: int = 0
    n_wrong_resumes: int = 0
    n_changed: int = 0
    wall_s: float = 0.0
    faults: list[str] = field(default_factory=list)
    values: dict[RunKey, float | None] = field(default_factory=dict)

    def add(self, verdict: Verdict) -> None:
        """Count a study."""
        self.n_studies += 1
        self.n_runs += verdict.n_runs
        self.n_lost += len(verdict.lost)
        self.n_repeated += len(verdict.repeated)
        self.n_stuck += len(verdict.stuck)
        self.n_curves += len(verdict.curves)
        self.n_resumed += verdict.n_resumed
        self.n_wrong_resumes += len(verdict.resumes)
        self.faults += verdict.faults
        for key, value in verdict.values.items():  # the same seeds: whatever was killed, the same values
            if self.values.setdefault(key, value) != value:
                self.n_changed += 1
                self.faults.append(f"{key} came out as {value} after {self.values[key]}")


@dataclass(kw_only=True)
class Field:
    """All that a campaign runs on."""

    service: Service
    engine: Engine
    dice: random.Random
    postgres: Postgres | None = None
    cluster: TwoNodes | None = None
    disk: Path | None = None
    clock: outages.Clock | None = None

    @property
    def storage(self) -> Path:
        return self.service.home / "checkpoints"

    def pids(self, beginning: str) -> list[int]:
        """Ray workers whose title begins so."""
        started = descendants(self.service.pid)
        if self.cluster is not None:
            started |= self.cluster.pids
        return titled(started, beginning)


@contextmanager
def field_of(
    targets: frozenset[Target], database: Database, *, dice: random.Random, folder: Path | None
) -> Iterator[Field]:
    """Set up what the targets need, in a new folder under `folder`; without one, everything is gone at the end."""
    with ExitStack() as stack:
        names = "-".join(sorted(target.name.lower() for target in targets))
        home = Path(tempfile.mkdtemp(prefix=f"admeta-{names}-{database}-", dir=folder))
        if folder is None:
            stack.callback(shutil.rmtree, home, ignore_errors=True)
        disk = clock = postgres = cluster = None
        if Target.DISK_FULL in targets:
            disk = stack.enter_context(outages.small_disk(Path(tempfile.mkdtemp(prefix="admeta-disk-")), mib=250))
            home = home if database is Database.POSTGRESQL else disk / "home"
        if database is Database.POSTGRESQL:
            postgres = stack.enter_context(own_postgres(within=disk))
        if Target.NODE in targets:
            cluster = stack.enter_context(two_nodes(home / "cluster"))
        if Target.CLOCK_STEP in targets:
            clock = outages.Clock(home)
        url = f"sqlite:///{home / 'admeta.sqlite3'}" if postgres is None else postgres.url
        under = {Target.READ_ONLY: outages.WITHOUT_OVERRIDE, Target.IDLE_CONNECTIONS: outages.FEW_DESCRIPTORS}
        service = Service(
            home,
            database_url=url,
            ray_address=None if cluster is None else cluster.address,
            environment={} if clock is None else clock.environment,
            under=[word for target, command in under.items() if target in targets for word in command],
        )
        stack.callback(service.check_left)
        stack.enter_context(service)
        engine = make_engine(url, pool_size=2)
        stack.callback(engine.dispose)
        yield Field(
            service=service, engine=engine, dice=dice, postgres=postgres, cluster=cluster, disk=disk, clock=clock
        )


def rounds(target: Target, n: int) -> list[list[Target]]:
    """So many kills of one target, in as many studies as they need."""
    return [[target] * min(target.kills_per_study, n - done) for done in range(0, n, target.kills_per_study)]


def run(campaign: Sequence[Sequence[Target]], database: Database, *, seed: int, folder: Path | None = None) -> Tally:
    """A study for each list of targets, which are struck in this order, or up to a stuck study.

    What a study has ended before goes to another study. `folder`: see `field_of`.
    """
    tally = Tally(targets=frozenset(target for strikes in campaign for target in strikes), database=database)
    begin = time.monotonic()
    dice = random.Random(f"{'/'.join(sorted(tally.targets))}/{database}/{seed}")
    with field_of(tally.targets, database, dice=dice, folder=folder) as place:
        for strikes in campaign:
            left = strikes
            while left and not tally.n_stuck:
                left = left[_one_study(place, tally, left) :]
    tally.wall_s = time.monotonic() - begin
    return tally


def _one_study(place: Field, tally: Tally, strikes: Sequence[Target]) -> int:
    """Run a study and strike it; returns how many of the strikes it has taken."""
    with place.service.client as client:
        study = client.submit(studies.quiet_study(f"round-{tally.n_studies}")).study
    snapshots: list[Snapshot] = []
    for target in strikes:
        # A study lasts for some 12 seconds on an idle machine; the kills should fall all over it.
        if not _wait_for_progress(place, study.id) or not _still_runs(place, study.id, place.dice.uniform(0.0, 4.0)):
            break
        snapshots.append(strike(place, target, study.id))
        tally.n_rounds += 1
    ended = _await_end(place, study.id)
    expected = replace(EXPECTED, in_order=Target.CLOCK_STEP not in strikes)
    verdict = audit(place.engine, study.id, expected=expected, snapshots=snapshots)
    if ended == "RUNNING":
        verdict.stuck.append(f"nothing happened in study {study.id} for {STUCK_AFTER_S:g} s")
    elif ended != "COMPLETED":
        with place.service.client as client:
            verdict.lost.append(f"the study ended as {ended}: {client.study(study.id).reason}")
    tally.add(verdict)
    return len(snapshots)


def strike(place: Field, target: Target, study: str) -> Snapshot:
    """Kill the target, take a snapshot, and bring back what does not come back by itself."""
    match target:
        case Target.SERVICE:
            place.service.kill()
            snapshot = look(place.engine, study, storage=place.storage, killed=None)
            time.sleep(place.dice.uniform(0.0, 2.0))
            place.service.start()
        case Target.DRIVER:
            workers = place.pids("ray::TrialWorker")
            for pid in place.pids("ray::DriverActor"):
                kill(pid)
            wait_until(lambda: not any(map(is_alive, workers)), what="the driver's workers are gone")
            snapshot = look(place.engine, study, storage=place.storage, killed=None)
        case Target.WORKER:
            pid = place.dice.choice(_wait_for_workers(place))
            kill(pid)
            snapshot = look(place.engine, study, storage=place.storage, killed={pid})
        case Target.NODE:
            assert place.cluster is not None
            second = place.cluster.second
            wait_until(
                lambda: bool(titled(second.pids, "ray::TrialWorker")) or _state(place, study) != "RUNNING",
                timeout_s=STUCK_AFTER_S,
                what="the second node has a run",
            )
            killed = place.cluster.second.pids
            place.cluster.second.kill()
            snapshot = look(place.engine, study, storage=place.storage, killed=killed)
            time.sleep(place.dice.uniform(1.0, 5.0))
            place.cluster.replace_second()
        case Target.DATABASE_5S | Target.DATABASE_60S:
            assert place.postgres is not None
            snapshot = look(place.engine, study, storage=place.storage, killed=set())
            place.engine.dispose()
            place.postgres.stop(place.dice.choice(["fast", "immediate"]))
            time.sleep(5.0 if target is Target.DATABASE_5S else 60.0)
            place.postgres.start()
        case _:
            # What an outage interrupts, it interrupts later: the checkpoints of this moment say nothing of that.
            snapshot = replace(look(place.engine, study, storage=place.storage, killed=set()), interrupted={})
            with _outage(place, target):
                time.sleep(OUTAGE_S)
            if place.postgres is not None and not place.postgres.is_running():
                place.engine.dispose()
                place.postgres.start()
    return snapshot


@contextmanager
def _outage(place: Field, target: Target) -> Iterator[None]:
    """What the target takes away is away inside."""
    with ExitStack() as stack:
        match target:
            case Target.DISK_FULL:
                assert place.disk is not None
                stack.enter_context(outages.full(place.disk))
            case Target.READ_ONLY if place.postgres is not None:
                stack.enter_context(outages.read_only_server(place.postgres.url))
            case Target.READ_ONLY:
                stack.enter_context(outages.not_writable(place.service.home / "admeta.sqlite3"))
                for pid in place.pids("ray::DriverActor"):
                    kill(pid)  # the next one opens the file, and may not write
            case Target.DESCRIPTORS:
                pids = [place.service.pid, *place.pids("ray::DriverActor"), *place.pids("ray::TrialWorker")]
                stack.enter_context(outages.no_descriptors(pids))
            case Target.IDLE_CONNECTIONS:
                stack.enter_context(outages.idle_connections(place.service.port, n=300))
            case Target.CLOCK_STEP:
                assert place.clock is not None
                place.clock.step()
        yield


def _wait_for_workers(place: Field) -> list[int]:
    found: list[int] = []

    def some() -> bool:
        found[:] = place.pids("ray::TrialWorker")
        return bool(found)

    wait_until(some, timeout_s=STUCK_AFTER_S, what="a worker runs")
    return found


def _wait_for_progress(place: Field, study: str) -> bool:
    """Whether a run was begun since now; False where the study ended first, or nothing happens in it."""
    before = _moves(place, study)[0]
    return _await(place, study, lambda: _moves(place, study)[0] > before) in ("QUEUED", "RUNNING")


def _await_end(place: Field, study: str) -> str:
    """The study's state once it has ended; RUNNING where nothing happens in it any more."""
    state = _await(place, study, lambda: False)
    return "RUNNING" if state == "STUCK" else state


def _await(place: Field, study: str, condition: Callable[[], bool]) -> str:
    """The study's state once the condition holds or the study has ended; STUCK where nothing happens in it."""
    last, since = _moves(place, study), time.monotonic()
    while True:
        state = _state(place, study)
        if condition() or state not in ("QUEUED", "RUNNING"):
            return state
        now = _moves(place, study)
        if now != last:
            last, since = now, time.monotonic()
        if time.monotonic() - since > STUCK_AFTER_S:
            return "STUCK"
        time.sleep(0.2)


def _still_runs(place: Field, study: str, after_s: float) -> bool:
    time.sleep(after_s)
    return _state(place, study) == "RUNNING"


def _moves(place: Field, study: str) -> tuple[int, int]:
    """Attempts and points so far: where anything happens in a study, one of them grows."""
    query = """SELECT count(DISTINCT (a.run_id * 1000 + a.attempt)), count(DISTINCT p.epoch + 1000 * p.run_id)
        FROM admeta_runs r JOIN admeta_searches s ON s.id = r.search_id JOIN admeta_attempts a ON a.run_id = r.id
        LEFT JOIN admeta_points p ON p.run_id = r.id WHERE s.study_id = :study"""
    with place.engine.connect() as connection:
        n_attempts, n_points = connection.execute(text(query), {"study": study}).one()
        return int(n_attempts), int(n_points)


def _state(place: Field, study: str) -> str:
    with place.engine.connect() as connection:
        query = text("SELECT state FROM admeta_studies WHERE id = :study")
        return str(connection.execute(query, {"study": study}).scalar_one())
