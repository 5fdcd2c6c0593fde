"""Whether Ray is still there: told by connecting to its control service and to its nodes."""

from __future__ import annotations

import errno
import functools
import importlib.util
import io
import os
import re
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray._private.accelerators import NvidiaGPUAcceleratorManager
from ray._private.node import Node
from ray._private.runtime_env import packaging

from service.ray import cluster
from service.ray.node import ClockWatch, JoinError
from service.settings import load
from tasks.registry import parse_config
from tasks.text.config import TRANSFORMERS


@pytest.fixture
def answering() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def silent() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def ray_with(monkeypatch: pytest.MonkeyPatch, *, control: str = "", nodes: list[dict[str, Any]] | None = None) -> None:
    """A Ray whose control service is said to be at `control`."""
    context = SimpleNamespace(gcs_address=control)
    fake = SimpleNamespace(get_runtime_context=lambda: context, nodes=lambda: nodes or [])
    monkeypatch.setattr(cluster, "ray", fake)


def node(port: int, *, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}


def test_a_control_service_that_answers_is_not_lost(monkeypatch: pytest.MonkeyPatch, answering: int) -> None:
    ray_with(monkeypatch, control=f"127.0.0.1:{answering}")
    assert cluster.control_is_lost() is None


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_control_service_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, silent: int, host: str
) -> None:
    ray_with(monkeypatch, control=f"{host}:{silent}")
    assert cluster.control_is_lost() == f"Ray's control service at {host}:{silent} does not answer"


def test_an_address_where_nothing_listens_is_told_at_once(
    tmp_path: Path, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself would try for minutes, and say nothing of use."""
    monkeypatch.setattr(cluster, "ray", None)  # it is not asked
    for address in (f"127.0.0.1:{silent}", f"[::1]:{silent}"):
        with pytest.raises(JoinError, match=re.escape(f"nothing answers at {address}. ")):
            cluster.join(load({}, home=tmp_path, ray_address=address))


def test_an_embedded_node_is_lost_when_it_is_dead_or_silent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answering: int, silent: int
) -> None:
    embedded = load({}, home=tmp_path)
    for nodes, lost in (
        ([node(answering)], False),
        ([node(silent)], True),  # Ray takes a quarter of a minute to say that it is dead
        ([node(answering, alive=False)], True),  # its port may be another's by now
        ([], True),
    ):
        ray_with(monkeypatch, nodes=nodes)
        assert cluster.node_is_lost(embedded) is lost


@pytest.mark.parametrize("error", [TimeoutError("timed out"), OSError(errno.EMFILE, "Too many open files")])
def test_an_embedded_ray_that_is_busy_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answering: int, error: OSError
) -> None:
    """The service would end it, with all that runs on it."""

    def connect(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("socket.create_connection", connect)
    ray_with(monkeypatch, control=f"127.0.0.1:{answering}", nodes=[node(answering)])
    assert not cluster.node_is_lost(load({}, home=tmp_path))
    assert cluster.control_is_lost() is None


def test_a_cluster_may_lose_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, silent: int) -> None:
    ray_with(monkeypatch, nodes=[node(silent)])
    assert not cluster.node_is_lost(load({}, home=tmp_path, ray_address="10.0.0.1:6379"))


@pytest.fixture
def init_options(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `ray.init` is given, and the environment that it finds; Ray itself is not started."""
    seen: dict[str, Any] = {}

    def init(**options: Any) -> None:
        environment = {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH_")}
        seen.update(options, environment=environment, told="ADMETA_DATABASE_URL" in os.environ)

    monkeypatch.setattr(cluster, "ray", SimpleNamespace(init=init))
    monkeypatch.setattr(cluster, "free_memory", lambda: 2**40)
    monkeypatch.setattr(cluster.node, "has_node", lambda: True)
    monkeypatch.setattr(cluster.node, "answers", lambda _host, _port: True)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")  # so that what is set here is undone
        monkeypatch.delenv(name)
    return seen


@pytest.mark.parametrize(("n_cards", "n_spare"), [(1, 10), (8, 34)])
def test_with_cards_processes_wait_that_have_imported_all_for_a_driver_a_check_and_the_first_trials(
    init_options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_cards: int, n_spare: int
) -> None:
    monkeypatch.setattr(cluster, "_n_own_cards", lambda: n_cards)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)), raising=False)
    cluster.join(load({}, home=tmp_path))
    options = init_options["_system_config"]
    assert options["preload_python_modules"] == list(cluster.PRELOADED_FOR_CARDS)
    assert all(importlib.util.find_spec(module) for module in cluster.PRELOADED_FOR_CARDS)
    assert options["worker_maximum_startup_concurrency"] == 6
    assert cluster._n_spare() == n_spare
    assert options["num_workers_soft_limit"] >= 2 * n_spare + 16 * n_cards


@pytest.mark.parametrize(
    ("n_cards", "free_gib", "n_kept", "n_refilled", "with_libraries"),
    [(1, 5, 2, 2, 2), (1, 10.5, 6, 6, 4), (0, 0.25, 2, 1, 1)],
)
def test_processes_that_wait_hold_at_most_a_quarter_of_the_free_memory(
    init_options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    n_cards: int,
    free_gib: float,
    n_kept: int,
    n_refilled: int,
    with_libraries: int,
) -> None:
    """On a machine of 8 GB ten processes that have imported torch would leave nothing for trials."""
    monkeypatch.setattr(cluster, "_n_own_cards", lambda: n_cards)
    monkeypatch.setattr(cluster, "free_memory", lambda: int(free_gib * 2**30))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    cluster.join(load({}, home=tmp_path))
    options = init_options["_system_config"]
    assert options["worker_maximum_startup_concurrency"] == n_kept
    assert options["num_workers_soft_limit"] == n_cards * 16 + (2 if n_cards else 1) * n_kept
    assert f"{n_kept} processes wait for a study instead of" in caplog.text

    asked: list[None] = []
    pause = SimpleNamespace(remote=lambda _: asked.append(None))
    monkeypatch.setattr(cluster, "_make_pause", lambda: pause)
    cluster.refill_spare(load({}, home=tmp_path))
    assert len(asked) == n_refilled
    asked.clear()
    cluster.refill_spare(load({}, home=tmp_path), libraries=TRANSFORMERS)
    assert len(asked) == with_libraries


def test_free_memory_is_what_a_containers_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.psutil, "virtual_memory", lambda: SimpleNamespace(available=9 * 2**30))
    monkeypatch.setattr(cluster, "estimate_available_memory", lambda: 3 * 2**30)
    assert cluster.free_memory() == 3 * 2**30
    monkeypatch.setattr(cluster, "estimate_available_memory", lambda: -1)  # over its soft limit
    assert cluster.free_memory() == 0


@pytest.mark.parametrize(("visible", "n_cards"), [(None, 8), ("", 0), ("2,3", 2)])
def test_processes_wait_for_the_cards_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, n_cards: int
) -> None:
    monkeypatch.setattr(NvidiaGPUAcceleratorManager, "get_current_node_num_accelerators", staticmethod(lambda: 8))
    monkeypatch.setattr(cluster, "get_accelerator_manager_for_resource", lambda _: NvidiaGPUAcceleratorManager)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cluster._n_own_cards.__wrapped__() == n_cards


def test_an_embedded_ray_is_asked_again_and_again_for_waiting_processes_by_one_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray keeps every task that is made until it ends, and a study that runs for days asks each minute."""
    made: list[Any] = []
    asked: list[Any] = []

    def remote(task: Any) -> Any:
        made.append(task)
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda _: asked.append(task)))

    monkeypatch.setattr(cluster, "ray", SimpleNamespace(remote=remote))
    monkeypatch.setattr(cluster, "_make_pause", functools.cache(cluster._make_pause.__wrapped__))
    monkeypatch.setattr(cluster, "_n_own_cards", lambda: 0)
    monkeypatch.setattr(cluster, "free_memory", lambda: 2**40)
    for _ in range(2):
        cluster.refill_spare(load({}, home=tmp_path))
    assert (len(made), len(asked)) == (1, 2 * cluster.N_SPARE)
    cluster.refill_spare(load({}, home=tmp_path, ray_address="10.0.0.1:6379"))
    assert len(asked) == 2 * cluster.N_SPARE


@pytest.mark.parametrize("n_cards", [0, 1])
def test_what_waits_on_a_machine_with_cards_imports_the_libraries_of_the_last_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, n_cards: int
) -> None:
    """A library that cannot be imported fails the task's own runs, which tell, and not what waits."""

    def run_now(task: Any) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=task))

    monkeypatch.setattr(cluster, "ray", SimpleNamespace(remote=run_now))
    monkeypatch.setattr(cluster, "_make_pause", cluster._make_pause.__wrapped__)
    monkeypatch.setattr(cluster, "_n_own_cards", lambda: n_cards)
    monkeypatch.setattr(cluster, "_n_spare", lambda: 1)
    monkeypatch.setattr(cluster, "free_memory", lambda: 2**40)
    monkeypatch.delitem(sys.modules, "sched", raising=False)
    cluster.refill_spare(load({}, home=tmp_path), libraries=("sched", "no.such.module"))
    assert ("sched" in sys.modules) == (n_cards > 0)


@pytest.mark.parametrize(
    ("task", "libraries"),
    [
        ({"name": "digits", "model": "mlp"}, ()),
        ({"name": "cifar10", "model": "vit_tiny"}, ("torchvision.models",)),
        ({"name": "cifar10", "acceleration": "compile"}, ("torch._inductor.compile_fx",)),
        ({"name": "cola"}, TRANSFORMERS),
        ({"name": "audio_folder", "model": "tiny", "data_dir": "clips"}, TRANSFORMERS),
    ],
)
def test_libraries_of_tasks(task: dict[str, Any], libraries: tuple[str, ...]) -> None:
    assert parse_config({"epochs": 1, **task}).libraries() == libraries
    assert all(importlib.util.find_spec(module) for module in libraries)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("libraries", [(), TRANSFORMERS, ("torchvision.models",), ("torch._inductor.compile_fx",)])
def test_what_waits_for_a_worker_has_not_touched_the_cards(tmp_path: Path, libraries: tuple[str, ...]) -> None:
    """CUDA reads which card a process has, and with whom it shares it, when it starts."""
    imports = "; ".join(f"import {module}" for module in (*cluster.PRELOADED_FOR_CARDS, *libraries))
    held = (
        "[link for fd in os.listdir('/proc/self/fd') if 'nvidia' in (link := os.path.realpath(f'/proc/self/fd/{fd}'))]"
    )
    use = f"import torch; before = {held}; torch.zeros(1, device='cuda'); print(before, bool({held}))"
    code = f"import os; {imports}; {use}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split("\n")[0] == "[] True"


def test_an_embedded_ray_has_the_cpus_that_this_process_may_use(
    init_options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray counts the machine's, whatever `taskset` or a batch system leaves of them."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    cluster.join(load({}, home=tmp_path))
    assert init_options["num_cpus"] == 4


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_an_embedded_ray_keeps_processes_ready(
    init_options: dict[str, Any], tmp_path: Path, address: str | None
) -> None:
    """A cluster's are its operator's: Ray refuses such options of a process that joins it."""
    cluster.join(load({}, home=tmp_path, ray_address=address))
    options = init_options.get("_system_config")
    if address is not None:
        assert options is None
        return
    assert options is not None
    assert options["preload_python_modules"] == ["search.trainable"]
    assert importlib.util.find_spec("search.trainable") is not None
    assert options["num_workers_soft_limit"] >= cluster.N_SPARE
    assert options["health_check_timeout_ms"] * 5 > 240_000  # a busy machine's node is not dead


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_rays_processes_do_not_inherit_the_database(
    monkeypatch: pytest.MonkeyPatch, init_options: dict[str, Any], tmp_path: Path, address: str | None
) -> None:
    monkeypatch.setenv("ADMETA_DATABASE_URL", "postgresql://u:secret@h/d")
    cluster.join(load({}, home=tmp_path, ray_address=address))
    assert (init_options["told"], init_options["address"]) == (False, address or "local")
    assert os.environ["ADMETA_DATABASE_URL"] == "postgresql://u:secret@h/d"


@pytest.mark.parametrize("mode", [None, "", "token"])
def test_an_embedded_ray_asks_for_a_random_token_on_loopback(
    monkeypatch: pytest.MonkeyPatch, init_options: dict[str, Any], tmp_path: Path, mode: str | None
) -> None:
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    cluster.join(load({}, home=tmp_path))
    assert init_options["_node_ip_address"] == "127.0.0.1"
    environment = init_options["environment"]
    assert environment.pop("RAY_AUTH_MODE", None) == (mode or None)  # Ray asks for tokens where nothing is said
    assert re.fullmatch("[0-9a-f]{64}", environment.pop("RAY_AUTH_TOKEN"))
    assert environment == {}


@pytest.mark.parametrize(
    "chosen",
    [
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_MODE": "k8s"},
        {"RAY_AUTH_TOKEN": "mine"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/etc/ray/token"},
    ],
)
def test_an_operators_own_choice_is_kept(
    monkeypatch: pytest.MonkeyPatch, init_options: dict[str, Any], tmp_path: Path, chosen: dict[str, str]
) -> None:
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    cluster.join(load({}, home=tmp_path))
    assert init_options["environment"] == chosen


def test_a_ray_without_tokens_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, init_options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "Disabled")
    cluster.join(load({}, home=tmp_path))
    assert "every user of this machine can run code" in caplog.text


def test_a_cluster_keeps_its_own_tokens(init_options: dict[str, Any], tmp_path: Path) -> None:
    cluster.join(load({}, home=tmp_path, ray_address="10.0.0.1:6379"))
    assert init_options["environment"] == {}


def test_a_cluster_that_lets_nobody_in_is_told_with_what_to_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("Failed to connect")

    monkeypatch.setattr("service.ray.cluster.ray.init", refuse)
    monkeypatch.setattr("service.ray.node.has_node", lambda: True)
    monkeypatch.setattr("service.ray.node.answers", lambda _host, _port: True)
    with pytest.raises(JoinError, match="head:6379 refuses this service: Failed to connect") as told:
        cluster.join(load({}, home=tmp_path, ray_address="head:6379"))
    assert "RAY_AUTH_TOKEN_PATH" in (told.value.hint or "")


def test_a_clock_that_is_set_back_is_noticed() -> None:
    """Ray's timers go by it: after a step of an hour no new worker starts for an hour."""
    wall, monotonic = [1000.0], [0.0]
    clock = ClockWatch(wall=lambda: wall[0], monotonic=lambda: monotonic[0])
    steps = []
    for step in (0.0, -3.0, 3.0, 3600.0, -3600.0, -60.0):
        monotonic[0] += 5.0
        wall[0] += 5.0 + step
        steps.append(round(clock.set_back_s()))
    assert steps == [0, 0, 0, 0, 3600, 3660]
    clock.reset()
    assert clock.set_back_s() == 0


@pytest.mark.parametrize(("n_missing", "lives", "starts"), [(900, True, True), (9, False, False), (9999, True, False)])
def test_ray_waits_for_its_node_as_long_as_that_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, n_missing: int, lives: bool, starts: bool
) -> None:
    """It would give up after 30 s, and the service would begin anew, again and again on a slow machine."""
    clock, asked = [0.0], list[tuple[str, ...]]()

    def ask(*which: str) -> dict[str, str]:
        asked.append(which)
        if len(asked) <= n_missing:
            raise RuntimeError("no such node")
        return {"node": "here"}

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    def init(**_: Any) -> None:
        assert cluster.services.get_node("gcs", "id") == {"node": "here"}

    monkeypatch.setattr(cluster, "ray", SimpleNamespace(init=init))
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(cluster.services, "get_node", ask)
    monkeypatch.setattr(cluster.node, "embedded_ray", lambda: {"raylet"} if lives else set())
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "given")
    with nullcontext() if starts else pytest.raises(RuntimeError, match="no such node"):
        cluster.start_embedded()
    assert set(asked) == {("gcs", "id")}
    assert cluster.services.get_node is ask


def test_ray_starts_as_elsewhere_once_the_embedded_one_has_started(
    monkeypatch: pytest.MonkeyPatch, init_options: dict[str, Any]
) -> None:
    names = ("start_api_server", "start_monitor", "start_log_monitor")
    before = [getattr(Node, name) for name in names]
    monkeypatch.setattr(cluster, "ray", SimpleNamespace(init=lambda **_: [getattr(Node, name)(None) for name in names]))
    cluster.start_embedded()
    assert [getattr(Node, name) for name in names] == before


@pytest.mark.parametrize("slow", [0, 1, 2, 3])
def test_a_pause_between_two_reads_of_the_clocks_is_no_step(slow: int) -> None:
    """On a machine that swaps, the service would end its Ray with all that runs on it."""
    now, n_reads = [1000.0], [0]

    def read() -> float:
        now[0] += 60.0 if n_reads[0] == slow else 0.0
        n_reads[0] += 1
        return now[0]

    clock = ClockWatch(wall=read, monotonic=read)
    assert [clock.set_back_s() for _ in range(3)] == [0, 0, 0]


def test_what_the_service_keeps_in_the_folder_of_the_code_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages: list[set[str]] = []

    def upload(uri: str, content: bytes) -> None:
        packages.append(set(zipfile.ZipFile(io.BytesIO(content)).namelist()))

    monkeypatch.setattr(packaging, "pin_runtime_env_uri", lambda uri: None)
    monkeypatch.setattr(packaging, "package_exists", lambda uri: False)
    monkeypatch.setattr(packaging, "upload_package_to_gcs", upload)
    kept = ["my state [1]/logs/a.log", "db.sqlite3", "db.sqlite3-wal", "data/a.npy", "check!points/a.pt", "ignored.py"]
    wanted = ["train.py", "my state 1/a.py", "package/data/a.py", "package/db.sqlite3", ".gitignore"]
    for name in kept + wanted:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("ignored.py\n" if name == ".gitignore" else "x" * 100)
    settings = load(
        {"ADMETA_DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3"},
        home=tmp_path / "my state [1]",
        data=tmp_path / "data",
        storage=str(tmp_path / "check!points"),
        code=tmp_path,
    )
    assert cluster.send_code(settings)["working_dir"].startswith("gcs://")
    assert packages == [set(wanted)]
    excludes = cluster.own_files(settings, tmp_path)
    cluster.check_size(tmp_path, excludes, at_most=500)
    with pytest.raises(ValueError, match="its files have more than 0 MiB"):
        cluster.check_size(tmp_path, [], at_most=500)
    assert cluster.own_files(load({}, code=tmp_path, storage="s3://bucket/a"), tmp_path) == []
