"""Another user of the machine gets no use of the Ray that a service starts for itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.ray import node
from tests.machine import PATIENCE_S

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"),
        reason="becoming another user in another mount namespace takes root, unshare and setpriv",
    ),
]
HOST = """
import os, sys
from pathlib import Path
import ray
from service.ray import cluster
from service.settings import load
settings = load({}, home=Path(sys.argv[1]))
cluster.join(settings)
ray.get(ray.remote(lambda: os.getpid()).options(runtime_env={"env_vars": {"OF_A_TASK": "1"}}).remote())
context = ray.get_runtime_context()
session = ray._private.worker._global_node.get_session_dir_path()
print(context.gcs_address, os.environ["RAY_AUTH_TOKEN"], session, flush=True)
sys.stdin.read()
cluster.leave(settings)
"""
STRANGER = """
import os, sys
import ray
from ray._private import services
from ray.scripts.scripts import cli
services.resolve_ip_for_localhost = lambda host: host  # Ray's clients would look for the service elsewhere
address = sys.argv[1]
cli(["start", f"--address={address}", "--num-cpus=0", "--object-store-memory=80000000", "--disable-usage-stats"],
    standalone_mode=False)
ray.init(address=address, logging_level="ERROR", log_to_driver=False)
print("a task ran as user", ray.get(ray.remote(lambda: os.getuid()).remote(), timeout=200))
"""
NOBODY = 65534


@dataclass(frozen=True)
class Victim:
    """A process with an embedded Ray, as `admeta serve` is one."""

    pid: int
    address: str
    token: str
    session: Path


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path_factory.mktemp("home"))],
        env={name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert host.stdout is not None
    try:
        address, token, session = host.stdout.readline().split()
        yield Victim(host.pid, address, token, Path(session))
    finally:
        host.communicate("", timeout=PATIENCE_S)


UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
ENTER = """
mount -t tmpfs -o mode=1777 tmpfs /mnt && mkdir /mnt/python /mnt/packages &&
mount --bind "$1" /mnt/python && mount --bind "$2" /mnt/packages && shift 2 &&
mount -t tmpfs -o mode=1777 tmpfs /tmp && mkdir /tmp/python /tmp/packages &&
mount --bind /mnt/python /tmp/python && mount --bind /mnt/packages /tmp/packages &&
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""


def as_stranger(address: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Attack as nobody, with a /tmp of its own that has our packages; all that is started there ends with it."""
    packages, python = (
        str(Path(sysconfig.get_path("purelib")).resolve()),
        f"/tmp/python/bin/{Path(sys.executable).resolve().name}",
    )
    return subprocess.run(
        [*UNSHARE, "sh", "-c", ENTER, "sh", sys.base_prefix, packages, python, "-c", STRANGER, address],
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/tmp",
            "PYTHONPATH": "/tmp/packages",
            "LD_LIBRARY_PATH": "/tmp/python/lib",
            **environment,
        },
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize(
    "environment",
    [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}],
    ids=["without a token", "with another token"],
)
def test_a_stranger_runs_no_task(victim: Victim, environment: dict[str, str]) -> None:
    tried = as_stranger(victim.address, **environment)
    assert "InvalidAuthToken" in tried.stdout + tried.stderr
    assert "a task ran" not in tried.stdout


def test_the_token_is_all_that_a_stranger_lacks(victim: Victim) -> None:
    """The same attack succeeds with the token, so the refusals above are the token's."""
    tried = as_stranger(victim.address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=victim.token)
    assert f"a task ran as user {os.geteuid()}" in tried.stdout, tried.stderr


def test_no_other_user_reads_the_token(victim: Victim) -> None:
    """Neither in a process's arguments nor in its environment nor in a file that Ray writes."""
    started = node.descendants(victim.pid)
    assert len(started) > 3
    for process in started:
        folder = Path("/proc", str(process.pid))
        assert victim.token not in (folder / "cmdline").read_text(errors="replace")
        read = subprocess.run(
            ["setpriv", "--reuid", str(NOBODY), "--clear-groups", "cat", str(folder / "environ")],
            capture_output=True,
            check=False,
        )
        assert read.returncode != 0
        assert victim.token.encode() not in read.stdout
    files = [path for path in victim.session.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if victim.token.encode() in path.read_bytes()]


@pytest.mark.parametrize("name", ["", "sockets", "runtime_resources", "logs"])
def test_no_other_user_opens_rays_folder(victim: Victim, name: str) -> None:
    """Ray makes its folders writable for all: sockets could be replaced there, and code that its workers import."""
    folder = victim.session / name
    assert folder.is_dir()
    become = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    for command in (["ls", str(folder)], ["touch", str(folder / "planted")]):
        assert subprocess.run([*become, *command], capture_output=True, check=False).returncode != 0
    assert not (folder / "planted").exists()


def test_ray_listens_on_loopback_only(victim: Victim) -> None:
    """A host of the network does not reach it, whatever it knows."""
    sockets: set[str] = set()
    for process in node.descendants(victim.pid):
        for link in Path("/proc", str(process.pid), "fd").iterdir():
            try:
                sockets.add(os.readlink(link))
            except OSError:  # closed meanwhile
                continue
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                listening.append(fields[1].rpartition(":")[0])
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert len(listening) > 3
    assert set(listening) <= loopback
