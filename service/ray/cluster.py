"""The Ray that studies run on: one that this process starts for itself, or a cluster that it joins.

Owns its start and its end, who may use it, its nodes, and whether it was lost: Ray's core ends a process that has
stayed connected to a dead Ray for a minute.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants, services
from ray._private.accelerators import get_accelerator_manager_for_resource
from ray._private.node import Node
from ray._private.runtime_env import packaging
from ray._private.runtime_env.working_dir import upload_working_dir_if_needed  # by actor: there is no public way
from ray._private.state import available_resources_per_node  # Ray has no public way to ask what each node has free
from ray._private.utils import estimate_available_memory  # psutil does not know a container's limit
from ray.exceptions import RuntimeEnvSetupError

from admeta.client.models import NodeView
from search.assignment import NAMESPACE
from search.packing import BEGIN_ON_LARGE, FIRST_RAISE, MOST
from service.ray import node
from service.settings import Settings, SettingsError
from tasks.data.trees import usable_cpus
from tasks.engine import sharing
from tasks.engine.folders import is_remote

log = logging.getLogger(__name__)

PRELOADED = ("search.trainable",)
"""What Ray's processes import as they start: what a trial's worker needs, without torch. Ray Tune, which drivers alone
need, takes as long again; a driver imports it while a worker checks its study."""
PRELOADED_FOR_CARDS = (*PRELOADED, "service.ray.supervisor", "search.tuning", "tasks.engine.run")
"""The same where the machine has cards, with all that a driver, a check and a worker import later, five seconds' work.

Nothing that may touch CUDA: a worker learns only later which card it has, and how it shares it.
"""
N_SPARE = 3
"""Processes that are started after a study for the next one: its driver's and two workers'."""
WAITING_BYTES = 50 * 2**20
"""What one of Ray's processes holds alone while it waits, besides the pages of libraries that all share."""
WAITING_BYTES_FOR_CARDS = 430 * 2**20
"""The same where the machine has cards."""
LIBRARIES_BYTES = 140 * 2**20
"""What transformers, the largest library of a task, holds besides."""
WAITING_SHARE = 0.25
"""Of the free memory, what processes may hold that wait: the rest is for the trials' data and what they compile."""

_SIGACTION_BYTES = 512  # struct sigaction has 152 bytes on Linux, 16 on macOS; it is only copied as a whole

_folder: Path | None = None
"""The embedded Ray's folder."""
_own_node: subprocess.Popen[bytes] | None = None
"""The node through which this process reaches a cluster, if it started one."""


def join(settings: Settings) -> None:
    """Start an embedded Ray, or join the cluster at `settings.ray_address`.

    Ray accepts only processes on a machine with a node: if this machine has none, one without CPUs and cards is
    started. An embedded Ray listens on loopback only and asks for a token that only this process and its children have.
    It ends with the calling thread, because the kernel kills its daemons with the thread that started them.

    Ray's processes do not inherit the database's address. The runtime environment belongs to the connection, so that
    everything started through it has it.

    Raises:
        JoinError: the cluster does not answer, or refuses the token.
    """
    global _own_node
    address = settings.ray_address
    if address is not None:
        node.check_answers(address)
        if not node.has_node():
            node.check_token(address)
            _own_node = node.join_without_capacity(address)
    database_url = os.environ.pop("ADMETA_DATABASE_URL", None)
    options = {
        "namespace": NAMESPACE,
        "log_to_driver": False,
        "runtime_env": None if settings.runtime_env is None else dict(settings.runtime_env),
        "logging_level": logging.ERROR,
    }
    try:
        with _handlers_kept(signal.SIGTERM, signal.SIGINT):
            if address is None:
                start_embedded(**options, _system_config={**_PATIENCE, **_spare_processes()})
            else:
                ray.init(address=address, **options)
    except ConnectionError as error:
        raise node.JoinError(
            f"the Ray cluster at {address} refuses this service: {error}.",
            hint="Check the address, RAY_AUTH_MODE and the token (RAY_AUTH_TOKEN_PATH), and that the Ray node on this "
            "machine is that cluster's.",
        ) from error
    finally:
        if database_url is not None:
            os.environ["ADMETA_DATABASE_URL"] = database_url


def start_embedded(**options: Any) -> None:
    """Start a Ray that only this process and its children can use. The children inherit its token by their environment.

    Other users can read neither the environment nor the memory of these processes, nor their folder. RAY_AUTH_MODE,
    RAY_AUTH_TOKEN and RAY_AUTH_TOKEN_PATH are kept if they are set, and RAY_worker_niceness.

    Args:
        options: of `ray.init`. Without `num_cpus` it has the CPUs that this process may use, of which Ray itself looks
            at a container's share, but not at what `taskset` or a batch system leaves of the machine.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "").strip().lower()
    if not mode:
        os.environ.pop("RAY_AUTH_MODE", None)  # Ray asks for tokens by default; it read the variable at its import
    if mode == "disabled":
        log.warning(
            "RAY_AUTH_MODE is disabled: every user of this machine can run code as the user of this service. "
            "Unset RAY_AUTH_MODE to have Ray ask for a token."
        )
    elif mode in ("", "token") and not any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ.setdefault(*node.PRIORITY)
    if usable_cpus() < (os.cpu_count() or 0):
        options.setdefault("num_cpus", usable_cpus())
    global _folder
    _folder = node.make_ray_folder()
    os.environ[node.RAY_FOLDER] = str(_folder)  # for what Ray starts, and for nothing that this process starts later
    try:
        with _bound_to_loopback(), _patient_with_its_node(), _without_what_nothing_asks():
            ray.init(
                address="local",
                _node_ip_address="127.0.0.1",
                _temp_dir=str(_folder),
                include_dashboard=False,
                **options,
            )
    finally:
        del os.environ[node.RAY_FOLDER]


_PATIENCE = {
    "health_check_timeout_ms": 60_000,  # 10 s: five in a row, and the node and all that runs on it would be given up
    "agent_register_timeout_ms": 600_000,  # 30 s: the node would end without its agent, which is a Python process
    "worker_register_timeout_seconds": 600,  # 60 s: a process that still imports Ray would be killed, and begun again
}
"""Ray's own limits for an embedded Ray, and its defaults: a machine of its own cannot be gone, only slow."""


def _spare_processes() -> dict[str, Any]:
    """Have Ray import what drivers and workers need as it starts processes, and keep those that wait.

    Otherwise it ends those that wait while all CPUs are in use. What waits for a driver or a worker has run nothing:
    Ray gives an actor its own process, which ends with it, and starts others for another runtime environment.
    """
    wanted = _n_spare() if has_cards() else max(N_SPARE, usable_cpus())
    kept = max(2, _with_room(wanted))  # a driver and a check, which every study starts
    if kept < wanted:
        log.warning(
            "%d processes wait for a study instead of %d: they may hold a quarter of the free memory (%.1f GiB); "
            "studies start some seconds later",
            kept,
            wanted,
            free_memory() / 2**30,
        )
    if not has_cards():
        started = {"worker_maximum_startup_concurrency": kept} if kept < wanted else {}  # Ray's own: one for each CPU
        return {"preload_python_modules": list(PRELOADED), "num_workers_soft_limit": kept, **started}
    return {
        "preload_python_modules": list(PRELOADED_FOR_CARDS),
        "num_workers_soft_limit": _n_own_cards() * MOST + 2 * kept,  # a study's and the next one's
        # At first Ray starts as many as there are CPUs. All at once they delay each other's imports, and the driver's.
        "worker_maximum_startup_concurrency": min(2 + BEGIN_ON_LARGE, usable_cpus(), kept),
    }


def _n_spare() -> int:
    """Processes to keep for the next study: its driver's, the check's and, with cards, those of its first trials."""
    return 2 + min(_n_own_cards() * FIRST_RAISE, usable_cpus()) if has_cards() else N_SPARE


def free_memory() -> int:
    """Bytes of memory that this machine has free; in a container at most what its limit leaves, which Ray reads."""
    return max(0, min(int(psutil.virtual_memory().available), int(estimate_available_memory())))


def _with_room(n: int, *, libraries: Sequence[str] = ()) -> int:
    """How many of `n` processes may wait, by the memory that is free now; what waits already is not part of it."""
    each = (WAITING_BYTES_FOR_CARDS if has_cards() else WAITING_BYTES) + (LIBRARIES_BYTES if libraries else 0)
    return min(n, int(WAITING_SHARE * free_memory() / each))


def has_cards() -> bool:
    """Whether this machine has cards. Then processes for the next study are made while one runs: its CPUs have room."""
    return _n_own_cards() > 0


@functools.cache
def _n_own_cards() -> int:
    """The cards of this machine that this process may use, as Ray counts them: CUDA_VISIBLE_DEVICES limits them."""
    cards = get_accelerator_manager_for_resource("GPU")
    visible = cards.get_current_process_visible_accelerator_ids()
    n = int(cards.get_current_node_num_accelerators())
    return n if visible is None else min(n, len(visible))


def refill_spare(settings: Settings, *, libraries: Sequence[str] = ()) -> list[Any]:
    """Have an embedded Ray start the processes that are missing for the next study, without waiting for them.

    Ray starts a process for each task for which none waits; each task lasts long enough to keep its process from the
    next. The first study after another finds the process that checked that one, and the others as they are made.

    Args:
        libraries: modules that they import too, where the machine has cards: those of the last study's task, since the
            next one's is likely to be the same.

    Returns:
        A reference for each process, which is ready when the process has started; empty for a cluster.
    """
    if settings.ray_address is not None:
        return []
    pause = _make_pause()
    imported = libraries if has_cards() else ()
    return [pause.remote(imported) for _ in range(_with_room(_n_spare(), libraries=imported))]


@functools.cache  # Ray stores each task that is made, as long as it runs
def _make_pause() -> Any:
    """A task that waits and imports, made here so that Ray sends it by value and no process imports this module."""

    def pause(libraries: Sequence[str]) -> None:
        import importlib
        import time

        time.sleep(0.2)
        for module in libraries:
            try:
                importlib.import_module(module)
            except Exception:  # noqa: BLE001 - the study's own runs tell
                return

    return ray.remote(pause).options(num_cpus=0)


@contextmanager
def _patient_with_its_node() -> Iterator[None]:
    """Let Ray wait for its node while that starts. After 30 s it would give up, and the next attempt begin anew."""
    ask = services.get_node

    def wait_for_node(*which: Any) -> Any:
        deadline = time.monotonic() + node.START_TIMEOUT_S
        while True:
            try:
                return ask(*which)
            except RuntimeError:  # it is not there yet
                if time.monotonic() > deadline or not node.embedded_ray():
                    raise
                time.sleep(0.1)

    services.get_node = wait_for_node
    try:
        yield
    finally:
        services.get_node = ask


@contextmanager
def _without_what_nothing_asks() -> Iterator[None]:
    """Let Ray leave out three Python processes of a head node, for the first of which it waits.

    They are the dashboard's, which without its pages only reports its use to Ray's makers, an autoscaler's without
    machines to start, and one that sends what workers write to drivers, which have no use for it.
    """
    starts = {name: getattr(Node, name) for name in ("start_api_server", "start_monitor", "start_log_monitor")}
    for name in starts:
        setattr(Node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, start in starts.items():
            setattr(Node, name, start)


@contextmanager
def _bound_to_loopback() -> Iterator[None]:
    """Let Ray use 127.0.0.1 as its node's address. On Linux it would replace it by one that others can reach."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def send_code(settings: Settings) -> dict[str, Any]:
    """The runtime environment whose processes can import the modules of `settings.code`. Sends it where it has changed.

    Files that a .gitignore names are left out, .git, .venv, venv and __pycache__, and what the service keeps in there.

    Raises:
        SettingsError: the folder is gone, unreadable or larger than Ray sends.
    """
    folder = settings.code
    assert folder is not None
    asked: dict[str, Any] = {"working_dir": str(folder), "excludes": own_files(settings, folder)}
    try:
        check_size(folder, asked["excludes"])
        with tempfile.TemporaryDirectory() as scratch:
            upload_working_dir_if_needed(asked, include_gitignore=True, scratch_dir=scratch, logger=log)
    except (ValueError, OSError, RuntimeEnvSetupError) as error:
        raise SettingsError(
            f"the folder {folder} cannot be sent to the workers: {error}.",
            hint="Name a folder of source code with --code, without data sets; a .gitignore in it leaves files out.",
        ) from error
    return {"working_dir": asked["working_dir"]}


def own_files(settings: Settings, folder: Path) -> list[str]:
    """What the service keeps in the folder, as lines of a .gitignore: its database, with tokens, checkpoints, data."""
    paths = [settings.home, settings.data]
    if not is_remote(settings.storage):
        paths.append(Path(settings.storage))
    dialect, _, file = settings.database_url.partition("?")[0].partition(":///")
    if dialect.startswith("sqlite"):
        paths += [Path(f"{file}{end}").absolute() for end in ("", "-wal", "-shm")]
    inside = [path.relative_to(folder) for path in paths if path != folder and path.is_relative_to(folder)]
    return ["/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path.as_posix()) for path in inside]


def check_size(folder: Path, excludes: list[str], *, at_most: int = packaging.GCS_STORAGE_MAX_SIZE) -> None:
    """Refuse a folder that Ray would read, pack (without compression) and then not send; raises ValueError."""
    size = 0

    def add(path: Path) -> None:
        nonlocal size
        size += path.stat().st_size if path.is_file() else 0
        if size >= at_most:
            raise ValueError(f"its files have more than {at_most >> 20} MiB")

    left_out = [packaging._get_excludes(folder, [*ray_constants.get_runtime_env_default_excludes(), *excludes])]
    packaging._dir_travel(folder, left_out, add, include_gitignore=True, logger=logging.Logger("", logging.CRITICAL))


def control_is_lost() -> str | None:
    """Why this process must disconnect from Ray and connect again; None if its control service answers."""
    address = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    is_lost = node.refuses(host, int(port)) if host == "127.0.0.1" else not node.answers(host, int(port))
    return f"Ray's control service at {address} does not answer" if is_lost else None


def node_is_lost(settings: Settings) -> bool:
    """Whether the embedded Ray's node has died. Ray's core then ends this process as soon as it disconnects."""
    return settings.ray_address is None and not any(
        row["Alive"] and not node.refuses(row["NodeManagerAddress"], row["NodeManagerPort"]) for row in ray.nodes()
    )


def leave(settings: Settings) -> None:
    """Disconnect. An embedded Ray ends with everything that it started."""
    if settings.ray_address is not None:
        ray.shutdown()
        end_own_node()
        return
    started = _embedded_processes()
    ray.shutdown()
    _end_embedded(started)


def end_embedded() -> None:
    """End what an embedded Ray started, without disconnecting: for a process that is replaced, as it can't disconnect.

    Its daemons end with the process, but its workers, and the memory of cards that they hold, only once they notice.
    """
    _end_embedded(_embedded_processes())


def _embedded_processes() -> set[psutil.Process]:
    return node.embedded_ray() | (set() if _folder is None else node.orphans(_folder))


def _end_embedded(started: set[psutil.Process]) -> None:
    node.end_processes(started)  # its agents would run for another minute
    if _folder is not None:
        shutil.rmtree(_folder.parent, ignore_errors=True)
    sharing.leave()  # the cards' multi-process service, which its workers started


def end_own_node() -> None:
    """End the node that was started for this process to reach a cluster through, if there is one."""
    global _own_node
    if _own_node is not None:
        node.end_node(_own_node)
        _own_node = None


def read_nodes() -> list[NodeView]:
    """The machines of the Ray that this process is connected to, live ones first; none if it is not connected."""
    if not ray.is_initialized():
        return []
    free = available_resources_per_node()
    views = [
        NodeView(
            id=row["NodeID"],
            host=row["NodeManagerHostname"],
            address=row["NodeManagerAddress"],
            alive=row["Alive"],
            cpus=row["Resources"].get("CPU", 0.0),
            cpus_free=free.get(row["NodeID"], {}).get("CPU", 0.0),
            gpus=row["Resources"].get("GPU", 0.0),
            gpus_free=free.get(row["NodeID"], {}).get("GPU", 0.0),
        )
        for row in ray.nodes()
    ]
    return sorted(views, key=lambda view: (not view.alive, view.host, view.id))


@contextmanager
def _handlers_kept(*signals: signal.Signals) -> Iterator[None]:
    """Put back the C-level handlers of these signals at the end of the block.

    Ray's core replaces the handler of SIGTERM by one that ends the process at once, without uvicorn's orderly stop.
    Python can set handlers from its main thread only, C from any thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    kept = {number: ctypes.create_string_buffer(_SIGACTION_BYTES) for number in signals}
    for number, action in kept.items():
        libc.sigaction(int(number), None, action)
    try:
        yield
    finally:
        for number, action in kept.items():
            libc.sigaction(int(number), action, None)
