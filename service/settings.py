"""Where the service keeps its things and where it listens: from flags, then the environment, then defaults.

Owns the names of the environment variables and the rules of their values. Reads the environment only in `load`;
everything else is passed a `Settings`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from service.errors import SettingsError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
_PASSWORD = re.compile(r"(://[^:/@]*:)[^@]*(@)")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that the service needs to know about where it runs.

    Attributes:
        home: folder of the SQLite file, the logs and, unless set otherwise, checkpoints and data.
        database_url: SQLAlchemy URL; not in the repr, because it may hold a password.
        ray_address: a cluster's address; None starts Ray in the service's own process.
        storage: checkpoints: a folder that all workers see, or an s3:// address.
        data: folder of the data sets.
        host, port: where to listen.
    """

    home: Path
    database_url: str = field(repr=False)
    ray_address: str | None
    storage: str
    data: Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise SettingsError(f"port {self.port} must be from 0 to 65535.", hint="0 takes any free port.")
        if not is_loopback(self.host):
            raise SettingsError(
                f"host '{self.host}' can be reached from other machines, and access tokens are not available yet.",
                hint="Serve on 127.0.0.1 and forward the port (ssh -L), or put an authenticating proxy in front.",
            )
        if "://" not in self.database_url:
            raise SettingsError(
                f"database URL '{self.safe_database_url}' must look like dialect://….",
                hint="For example sqlite:////var/lib/admeta/admeta.sqlite3 or postgresql://user@host/admeta.",
            )

    @property
    def url(self) -> str:
        """The service's own address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def safe_database_url(self) -> str:
        """The database's URL without its password."""
        return _PASSWORD.sub(r"\1***\2", self.database_url)


def load(
    environ: Mapping[str, str],
    *,
    home: Path | None = None,
    database_url: str | None = None,
    ray_address: str | None = None,
    storage: str | None = None,
    data: Path | None = None,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
) -> Settings:
    """The settings from flags (the keywords), where None from the environment, where unset the defaults.

    Raises:
        SettingsError: a value cannot be used.
    """
    folder = (home or Path(environ.get("ADMETA_HOME") or "~/.admeta")).expanduser().absolute()
    return Settings(
        home=folder,
        database_url=database_url or environ.get("ADMETA_DATABASE_URL") or f"sqlite:///{folder / 'admeta.sqlite3'}",
        ray_address=ray_address or environ.get("ADMETA_RAY_ADDRESS") or None,
        storage=_storage(storage or environ.get("ADMETA_STORAGE") or str(folder / "checkpoints")),
        data=(data or Path(environ.get("ADMETA_DATA") or folder / "data")).expanduser().absolute(),
        host=host,
        port=port,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _storage(value: str) -> str:
    return value if "://" in value else str(Path(value).expanduser().absolute())
