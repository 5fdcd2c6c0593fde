"""The compose file: Compose itself accepts it, and it keeps what docs/cluster.md promises."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.ray.node import has_node
from tests.machine import PATIENCE_S

ROOT = Path(__file__).parents[2]
PROFILES = ("cpu", "gpu")


def _compose() -> list[str]:
    """Compose as a plugin of docker, or as a command of its own."""
    if shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if os.environ.get("CI"):
        pytest.fail("neither `docker compose` nor `docker-compose` is installed; CI must check the compose file")
    pytest.skip("neither `docker compose` nor `docker-compose` is installed")


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert isinstance(services, dict)
    return services


@pytest.mark.parametrize("profile", PROFILES)
def test_compose_accepts_it(tmp_path: Path, profile: str) -> None:
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    subprocess.run(
        ["sh", str(ROOT / "deploy" / "secrets.sh"), "secrets"], cwd=tmp_path, check=True, capture_output=True
    )
    done = subprocess.run(
        [*_compose(), "--profile", profile, "config"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(done.stdout)
    assert {"postgres", "ray-head", "service"} <= set(config["services"])
    for name in ("postgres_password", "ray_token", "admin_token"):
        secret = (tmp_path / "secrets" / name).read_text()
        assert len(secret) == 64
        assert secret not in done.stdout


def test_every_part_is_watched_limited_pinned_and_without_rights(parts: dict[str, Any]) -> None:
    image_user = re.search(r"^USER (\w+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    assert image_user is not None
    for name, part in parts.items():
        assert "healthcheck" in part, name
        assert "memory" in part["deploy"]["resources"]["limits"], name
        assert part["cap_drop"] == ["ALL"], name
        assert re.search(r":\d+\.\d+", part["image"]), f"{name}: image {part['image']} is not pinned"
        assert part.get("user") == "postgres" or "build" in part, f"{name} runs as root"
    assert image_user[1] != "root"


def test_workers_reach_no_database(parts: dict[str, Any]) -> None:
    for name in ("ray-worker", "ray-worker-cpu"):
        assert parts[name]["networks"] == ["cluster"]
        assert "postgres_password" not in parts[name]["secrets"]
    assert parts["postgres"]["networks"] == ["database"]


def test_only_loopback_is_published(parts: dict[str, Any]) -> None:
    for name, part in parts.items():
        for port in part.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name}: {port}"


def test_secrets_are_made_once_and_are_the_owners_alone(tmp_path: Path) -> None:
    make = ["sh", str(ROOT / "deploy" / "secrets.sh"), str(tmp_path / "secrets")]
    subprocess.run(make, check=True, capture_output=True)
    before = {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}
    subprocess.run(make, check=True, capture_output=True)
    assert {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()} == before
    assert len(set(before.values())) == 3
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0


def test_the_image_has_what_triton_asks_for() -> None:
    """It builds the launchers of kernels with a C compiler; the fused steps on a card need it."""
    assert re.search(r"apt-get install [^&]*\bgcc libc6-dev\b", (ROOT / "deploy" / "Dockerfile").read_text())


def test_a_worker_is_healthy_while_its_own_node_runs(parts: dict[str, Any]) -> None:
    for name in ("ray-worker", "ray-worker-cpu"):
        assert parts[name]["healthcheck"]["test"][0] == "CMD"
        _asks_for_the_node(parts[name]["healthcheck"]["test"][1:])


def _asks_for_the_node(command: list[str]) -> None:
    assert command[0] == "python"
    done = subprocess.run([sys.executable, *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0 if has_node() else 1, "")


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "admeta.yaml").read_text()))


def test_kubernetes_manifests_are_whole(manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        assert {"apiVersion", "kind", "metadata"} <= set(manifest)


def test_pods_of_ray_have_commands_and_probes_of_their_own(manifests: list[dict[str, Any]]) -> None:
    """KubeRay's probes need wget and Ray's dashboard; its command for workers does not give runs back."""
    (cluster,) = (manifest for manifest in manifests if manifest["kind"] == "RayCluster")
    assert cluster["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    head, *workers = [container for group in groups for container in group["template"]["spec"]["containers"]]
    assert head["command"][:3] == ["ray", "start", "--head"]
    assert head["livenessProbe"]["exec"]["command"][:2] == ["ray", "health-check"]
    for worker in workers:
        assert worker["command"][:3] == ["admeta", "worker", "--address"]
        _asks_for_the_node(worker["livenessProbe"]["exec"]["command"])
    assert all(one["readinessProbe"] == one["livenessProbe"] for one in (head, *workers))
