# ruff: noqa: T201 - a command that tells a story
"""`python -m tests.deploy.hosts`: three hosts, one of which is cut off in mid-study and comes back.

Needs root, and `ip` of iproute2.
Network namespaces on one bridge stand for the hosts, each with processes and /tmp of its own: service, database and
Ray's head on the first, `admeta worker` on the two others, with Ray's token authentication on.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from service.database.engine import make_engine
from tests.chaos import studies
from tests.chaos.ledger import Expected, Verdict, audit, look
from tests.machine import wait_until

BRIDGE = "admeta-br"
HOSTS = ("one", "two", "three")
N_TRIALS = 16
EPOCH_S = 1.0


def address(host: str) -> str:
    """The host's address on the bridge."""
    return f"10.77.0.{HOSTS.index(host) + 1}"


@contextmanager
def network() -> Iterator[None]:
    """The bridge and the hosts."""
    _ip(f"link add {BRIDGE} type bridge")
    _ip(f"addr add 10.77.0.254/24 dev {BRIDGE}")
    _ip(f"link set {BRIDGE} up")
    try:
        for host in HOSTS:
            space = f"admeta-{host}"
            _ip(f"netns add {space}")
            _ip(f"link add {_cable(host)} type veth peer name eth0 netns {space}")
            _ip(f"link set {_cable(host)} master {BRIDGE} up")
            for command in (f"addr add {address(host)}/24 dev eth0", "link set eth0 up", "link set lo up"):
                _ip(f"-n {space} {command}")
            _ip(f"-n {space} route add default via 10.77.0.254")
        yield
    finally:
        for host in HOSTS:
            # The cable too: a space lives on for as long as a process in it takes to end.
            for thing in (["link", "del", _cable(host)], ["netns", "del", f"admeta-{host}"]):
                subprocess.run(["ip", *thing], check=False, stderr=subprocess.DEVNULL)
        _ip(f"link del {BRIDGE}")


@contextmanager
def running(host: str, command: str, *, log: Path, token: Path) -> Iterator[None]:
    """A process on a host, with process numbers and a /tmp of its own; all that it started ends with it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *f"ip netns exec admeta-{host} unshare -pfm --kill-child --mount-proc sh -c".split(),
                f"mount -t tmpfs none /tmp; exec {command}",
            ],
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(token),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(Path.cwd()),
            },
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def cut(host: str) -> None:
    """Pull the host's cable."""
    _ip(f"link set {_cable(host)} down")


def mend(host: str) -> None:
    """Put the cable back."""
    _ip(f"link set {_cable(host)} up")


def story(folder: Path, *, away_s: float) -> Verdict:
    """Run a study over the two workers, cut one off for a while, and audit what came of it."""
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    python = shlex.quote(sys.executable)
    head = f"{address('one')}:6379"
    cli = f"{python} -c 'from service.cli import main; main()'"
    with ExitStack() as stack:
        stack.enter_context(network())

        def start(host: str, name: str, command: str) -> None:
            stack.enter_context(running(host, command, log=folder / f"{name}.log", token=token))

        ray = f"{python} -m ray.scripts.scripts start --head --block --port=6379 --num-cpus=0 --disable-usage-stats"
        start("one", "head", f"{ray} --include-dashboard=false --node-ip-address={address('one')}")
        time.sleep(10)
        for host in ("two", "three"):
            start(host, f"worker-{host}", f"{cli} worker --address {head} --cpus 1")
        admin = folder / "admin"
        admin.write_text(secrets.token_hex(32))
        os.environ["ADMETA_ADMIN_TOKEN_FILE"] = str(admin)
        start("one", "service", f"{cli} serve --home {folder}/home --host {address('one')} --ray-address {head}")
        client = httpx.Client(
            base_url=f"http://{address('one')}:8000", headers={"Authorization": f"Bearer {admin.read_text()}"}
        )
        return _disturb(stack.enter_context(client), folder / "home", away_s=away_s)


def _disturb(client: httpx.Client, home: Path, *, away_s: float) -> Verdict:
    wait_until(lambda: _n_workers(client) == 2, timeout_s=180, what="both workers have joined", poll_s=1)
    definition = studies.quiet_study("cut-off", sleep_s=EPOCH_S)
    definition["budget"] = {"trials_per_optimizer": N_TRIALS}
    study = client.post("/v1/studies", json=definition).raise_for_status().json()["id"]
    engine = make_engine(f"sqlite:///{home / 'admeta.sqlite3'}", pool_size=2)
    wait_until(lambda: _n_complete(client, study) >= 4, timeout_s=180, what="four trials are complete")
    wait_until(lambda: address("three") in _busy(client), timeout_s=60, what="host three has a run", poll_s=0.1)
    time.sleep(2 * EPOCH_S)
    begun = time.monotonic()
    cut("three")
    # The folder of the checkpoints stays within reach: the epoch under way there ends, and its checkpoint is the last.
    time.sleep(3 * EPOCH_S)
    snapshot = look(engine, study, storage=home / "checkpoints", killed=None)
    print(f"cut off: {len(snapshot.finished)} runs finished, {len(snapshot.interrupted)} under way", flush=True)
    noticed = _wait_for_notice(client, until=begun + away_s)
    print(f"noticed after {noticed - begun:.1f} s" if noticed else "not noticed", flush=True)
    time.sleep(max(0.0, begun + away_s - time.monotonic()))
    print(f"back after {time.monotonic() - begun:.1f} s; {_n_complete(client, study)} trials complete", flush=True)
    mend("three")
    if noticed is not None:
        _wait_for_return(client)
    wait_until(lambda: _state(client, study) != "RUNNING", timeout_s=300, what="the study ends", poll_s=1)
    print(f"study {_state(client, study)} {time.monotonic() - begun:.0f} s after the cut", flush=True)
    expected = Expected(
        n_trials=N_TRIALS,
        n_confirm_runs=len(studies.SEEDS),
        n_epochs=studies.N_EPOCHS,
        steps_per_epoch=studies.STEPS_PER_EPOCH,
    )
    verdict = audit(engine, study, expected=expected, snapshots=[snapshot])
    engine.dispose()
    return verdict


def _wait_for_return(client: httpx.Client) -> None:
    mended = time.monotonic()
    wait_until(lambda: _n_workers(client) == 2, timeout_s=180, what="host three joins again", poll_s=0.5)
    print(f"joined {time.monotonic() - mended:.1f} s later", flush=True)
    wait_until(lambda: address("three") in _busy(client), timeout_s=180, what="host three has a run again", poll_s=0.5)
    print(f"told of an epoch {time.monotonic() - mended:.1f} s after it was back", flush=True)


def _wait_for_notice(client: httpx.Client, *, until: float) -> float | None:
    """When the cluster takes the host for dead; None: the host is back before."""
    while time.monotonic() < until:
        if _n_workers(client) == 1:
            return time.monotonic()
        time.sleep(0.5)
    return None


def _n_workers(client: httpx.Client) -> int:
    return sum(node["alive"] and node["cpus"] > 0 for node in _cluster(client)["nodes"])


def _busy(client: httpx.Client) -> set[str]:
    return {run["node"] for run in _cluster(client)["runs"]}


def _cluster(client: httpx.Client) -> dict[str, Any]:
    try:
        found: dict[str, Any] = client.get("/v1/cluster", timeout=20).json()
    except httpx.TransportError:  # it starts
        return {"nodes": [], "runs": []}
    return found


def _state(client: httpx.Client, study: str) -> str:
    return str(client.get(f"/v1/studies/{study}", timeout=20).json()["state"])


def _n_complete(client: httpx.Client, study: str) -> int:
    searches = client.get(f"/v1/studies/{study}", timeout=20).json()["searches"]
    return sum(int(search["n_complete"]) for search in searches)


def _cable(host: str) -> str:
    return f"admeta-{host}"[:15]


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.hosts", description=__doc__)
    parser.add_argument("--away-s", type=float, default=90.0, help="seconds that the host is cut off (default: 90)")
    parser.add_argument("--folder", type=Path, help="keep home and logs here (default: a temporary folder)")
    options = parser.parse_args()
    # Not under /tmp, which every host has its own of.
    folder = options.folder or Path(tempfile.mkdtemp(prefix="admeta-hosts-", dir="/var/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    verdict = story(folder.absolute(), away_s=options.away_s)
    print(
        f"{verdict.n_runs} runs: {len(verdict.lost)} lost, {len(verdict.repeated)} repeated, {len(verdict.stuck)} "
        f"stuck, {len(verdict.curves)} curve faults, {verdict.n_resumed} resumed, {len(verdict.resumes)} elsewhere "
        "than at the last checkpoint"
    )
    for fault in verdict.faults:
        print(f"  {fault}")
    return int(bool(verdict.faults))


if __name__ == "__main__":
    sys.exit(main())
