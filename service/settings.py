"""Where the service keeps its things and where it listens: from flags, then the environment, then defaults.

Owns the names of the environment variables and the rules of their values. Reads the environment only in `load`;
everything else is passed a `Settings`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from service import quotas
from service.errors import SettingsError
from service.quotas import Quotas

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
_PASSWORD = re.compile(r"(://[^:/@]*:)[^@]*(@)")


class LogFormat(StrEnum):
    """How a line of the log is written: for people, or one JSON object for whatever collects them."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that the service needs to know about where it runs.

    Attributes:
        home: folder of the SQLite file, the logs and, unless set otherwise, checkpoints and data.
        database_url: SQLAlchemy URL; not in the repr, because it may hold a password.
        ray_address: a cluster's address; None starts Ray in the service's own process.
        storage: checkpoints: a folder that all workers see.
        data: folder of the data sets.
        host, port: where to listen.
        require_token: demand access tokens on loopback too; any other address always does.
        log_format: of the log's lines.
        quotas: how much the service takes on.
    """

    home: Path
    database_url: str = field(repr=False)
    ray_address: str | None
    storage: str
    data: Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    require_token: bool = False
    log_format: LogFormat = LogFormat.TEXT
    quotas: Quotas = field(default_factory=Quotas)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise SettingsError(f"port {self.port} must be from 0 to 65535.", hint="0 takes any free port.")
        if "://" not in self.database_url:
            raise SettingsError(
                f"database URL '{self.safe_database_url}' must look like dialect://….",
                hint="For example sqlite:////var/lib/admeta/admeta.sqlite3 or postgresql://user@host/admeta.",
            )

    @property
    def tokens_required(self) -> bool:
        """Whether requests must bring an access token."""
        return self.require_token or not is_loopback(self.host)

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
    require_token: bool | None = None,
    log_format: str | None = None,
    **limits: int | None,
) -> Settings:
    """The settings from flags (the keywords), where None from the environment, where unset the defaults.

    Args:
        limits: the fields of `service.quotas.Quotas`.

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
        require_token=_truth(environ, "ADMETA_REQUIRE_TOKEN") if require_token is None else require_token,
        log_format=_log_format(log_format or environ.get("ADMETA_LOG_FORMAT") or LogFormat.TEXT),
        quotas=quotas.load(environ, **limits),
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _storage(value: str) -> str:
    if "://" in value:
        raise SettingsError(
            f"storage '{value}' is an address; checkpoints go to a folder.",
            hint="Name a folder that every worker can write, on one host any, on several a network file system.",
        )
    return str(Path(value).expanduser().absolute())


def _truth(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "").strip().lower()
    if text in ("", "0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    raise SettingsError(f"{name} = '{text}' is neither yes nor no.", hint="Set it to 1 or 0.")


def _log_format(text: str) -> LogFormat:
    try:
        return LogFormat(text)
    except ValueError:
        raise SettingsError(
            f"log format '{text}' is not known.", hint=f"Choose one of: {', '.join(LogFormat)}."
        ) from None
