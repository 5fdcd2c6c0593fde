"""The compose file: Compose itself accepts it, and it keeps what docs/cluster.md promises."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

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
        [*_compose(), "--profile", profile, "config"], cwd=tmp_path, capture_output=True, text=True, timeout=60
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


@pytest.mark.parametrize("file", sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml")), ids=lambda file: file.name)
def test_kubernetes_manifests_are_whole(file: Path) -> None:
    for manifest in yaml.safe_load_all(file.read_text()):
        assert {"apiVersion", "kind", "metadata"} <= set(manifest)
