"""What the client and the command line rest on: versions, and a service that answers and lets one in."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from importlib.util import find_spec

from service.client import Client
from service.doctor.findings import Finding
from service.errors import ClientError

PACKAGES = ("admeta-search", "torch", "ray", "optuna", "sqlalchemy", "fastapi", "pydantic", "httpx")
_SERVER_MODULES = ("alembic", "fastapi", "optuna", "ray", "sqlalchemy", "torch")
_PATIENCE_S = 5.0


def examine(url: str | None) -> list[Finding]:
    """Look at everything.

    Args:
        url: the service's address; None: ADMETA_URL, else this machine's.
    """
    is_named = bool(url or os.environ.get("ADMETA_URL"))
    with Client(url, timeout_s=_PATIENCE_S) as client:
        return [_versions(), _service(client, is_named=is_named)]


def can_serve() -> bool:
    """Whether the packages that a service needs are installed."""
    return all(find_spec(name) is not None for name in _SERVER_MODULES)


def _versions() -> Finding:
    python = ".".join(map(str, sys.version_info[:3]))
    return Finding("versions", ", ".join([f"python {python}", *(f"{name} {_version(name)}" for name in PACKAGES)]))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _service(client: Client, *, is_named: bool) -> Finding:
    try:
        health = client.health()
    except ClientError as error:
        if is_named or error.status is not None:
            return Finding("service", error.detail, error.hint)
        return Finding("service", f"none runs at {client.url}; `admeta serve` starts one")
    found = f"{client.url}: version {health.version}, database {health.database}, Ray {health.ray}"
    if health.status != "ok":
        return Finding("service", found, "See its database with `admeta doctor` on its own machine, and its log.")
    if health.version != _version("admeta-search"):
        return Finding("service", found, "Install the same version here: commands and service may differ in words.")
    try:
        built_on = client.version()
    except ClientError as error:
        return Finding("service", f"{found}; {error.detail}", error.hint)
    parts = ", ".join(f"{name} {number}" for name, number in {"python": built_on.python, **built_on.parts}.items())
    return Finding("service", f"{found}; {parts}")
