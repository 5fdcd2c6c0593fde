"""Checks of what the service needs: home, database, Ray, GPUs, storage, data.

The checks change nothing: they create no table, start no Ray, and remove the file that they write to the storage.
"""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from admeta.cli.doctor import Finding
from service.database.engine import make_single_engine, parse_url, sqlite_path
from service.database.errors import DatabaseError
from service.database.schema import current_revision, head_revision
from service.settings import Settings, load
from tasks.data.trees import usable_cpus
from tasks.engine.folders import is_remote, open_folder

MIN_FREE_GIB = 5
_DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg", "/dev/kfd")
"""Files that exist where a driver of NVIDIA, WSL or AMD is installed."""


def examine_flags(**flags: Any) -> list[Finding]:
    """Check everything, with the settings of `service.settings.load` for these flags and the environment."""
    return examine(load(os.environ, **flags))


def examine(settings: Settings) -> list[Finding]:
    """Check everything. A check that fails does not stop the others."""
    looks: tuple[Callable[[Settings], Finding], ...] = (_home, _database, _ray, _gpus, _storage, _data)
    return [look(settings) for look in looks]


def _home(settings: Settings) -> Finding:
    folder = _existing(settings.home)
    if not os.access(folder, os.W_OK):
        return Finding("home", f"{folder} cannot be written", "Choose another with --home or ADMETA_HOME.")
    free = shutil.disk_usage(folder).free / 2**30
    advice = "" if free >= MIN_FREE_GIB else f"Free some space for checkpoints: at least {MIN_FREE_GIB} GiB."
    return Finding("home", f"{settings.home}, {free:.0f} GiB free", advice)


def _database(settings: Settings) -> Finding:
    shown = settings.safe_database_url
    try:
        path = sqlite_path(parse_url(settings.database_url))
        if path is not None and not path.exists():
            return Finding("database", f"{shown}: does not exist yet; the first start creates it")
        engine = make_single_engine(settings.database_url)
        found, needed = current_revision(engine), head_revision()
    except DatabaseError as error:
        return Finding("database", error.detail, error.hint)
    except ModuleNotFoundError:
        return Finding("database", "no driver for PostgreSQL", "pip install 'admeta-search[postgres]'")
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip().split("\n")[0]
        return Finding("database", f"{shown}: {reason}", "Check that the server runs, the user and the password.")
    if found is None:
        return Finding("database", f"{shown}: reachable, no tables yet; the first start creates them")
    if found != needed:
        return Finding(
            "database",
            f"{shown}: tables at {found}, this version needs {needed}",
            "Start the service, or run `admeta db upgrade`.",
        )
    return Finding("database", f"{shown}: reachable, tables at {found}")


def _ray(settings: Settings) -> Finding:
    address = settings.ray_address
    if address is None:
        return Finding("ray", f"{usable_cpus()} CPUs here; the service starts its own Ray")
    if address == "auto":
        return Finding("ray", "auto: the service joins the Ray node that runs on this machine, if one does")
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        advice = "Start the cluster (ray start --head), and open this port to this machine."
        return Finding("ray", f"{address}: {error.strerror or error}", advice)
    if os.environ.get("RAY_AUTH_MODE") is None:
        advice = (
            "Set RAY_AUTH_MODE=token and a token file, as on the cluster; Ray 2.60 refuses clients that set nothing."
        )
        return Finding("ray", f"{address}: reachable, RAY_AUTH_MODE is not set", advice)
    return Finding("ray", f"{address}: reachable")


def _gpus(_settings: Settings) -> Finding:
    if not any(Path(driver).exists() for driver in _DRIVERS):  # importing torch takes longer than all other checks
        return Finding("gpus", f"no driver of a GPU here; torch {metadata.version('torch')} trains on the CPU")
    try:
        import torch
    except ImportError as error:
        return Finding("gpus", f"torch cannot be imported: {error}", "Install the project's requirements again.")
    if not torch.cuda.is_available():
        return Finding("gpus", f"no GPU; torch {torch.__version__} trains on the CPU")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding("gpus", ", ".join(names))


def _storage(settings: Settings) -> Finding:
    where = settings.storage
    name = f"admeta-doctor-{uuid.uuid4().hex}"
    try:
        folder = open_folder(where if is_remote(where) else _existing(Path(where)))
        folder.write(name, [b""])
        folder.remove(name)
    except OSError as error:
        return Finding(
            "storage", f"{where}: {error}", "Choose a place for checkpoints that all workers can write, with --storage."
        )
    note = "" if settings.ray_address is None or is_remote(where) else "; all workers must see this folder"
    return Finding("storage", f"{where}: is writable{note}")


def _data(settings: Settings) -> Finding:
    if not settings.data.is_dir():
        return Finding("data", f"{settings.data}: does not exist; digits and the synthetic tasks need no data")
    names = sorted(entry.name for entry in settings.data.iterdir() if not entry.name.startswith("."))
    return Finding("data", f"{settings.data}: {', '.join(names[:12]) or 'empty'}")


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())
