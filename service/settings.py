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
from typing import Any
from urllib.parse import quote

from service import quotas, runtime_env
from service.errors import SettingsError
from service.quotas import Quotas
from tasks.engine.folders import check_address, is_remote
from tasks.errors import ConfigError

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
        admin_token: works as an admin's from the start on; for a service that nobody can log in to. Not in the repr.
        ray_address: a cluster's address; None starts Ray in the service's own process.
        runtime_env: what Ray is to prepare on its nodes for drivers and trials; None: nothing. Not in the repr, because
            its variables may be secret.
        storage: checkpoints: a folder that all workers see, or the address of a bucket (s3://…, gs://…).
        data: folder of the data sets.
        host, port: where to listen.
        require_token: demand access tokens on loopback too; any other address always does.
        log_format: of the log's lines.
        quotas: how much the service takes on.
    """

    home: Path
    database_url: str = field(repr=False)
    admin_token: str | None = field(default=None, repr=False)
    ray_address: str | None
    runtime_env: Mapping[str, Any] | None = field(default=None, repr=False)
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
    runtime_env_file: Path | None = None,
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
        database_url=_with_password(
            database_url or environ.get("ADMETA_DATABASE_URL") or f"sqlite:///{folder / 'admeta.sqlite3'}",
            _secret(environ, "ADMETA_DATABASE_PASSWORD_FILE"),
        ),
        admin_token=_secret(environ, "ADMETA_ADMIN_TOKEN_FILE"),
        ray_address=ray_address or environ.get("ADMETA_RAY_ADDRESS") or None,
        runtime_env=_runtime_env(runtime_env_file or environ.get("ADMETA_RUNTIME_ENV")),
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
    if not is_remote(value):
        return str(Path(value).expanduser().absolute())
    try:
        check_address(value)
    except ConfigError as error:
        raise SettingsError(
            f"storage: {error}.",
            hint="Name a folder that every worker can write (on several hosts a network file system), or a bucket: "
            "s3://bucket/path, gs://bucket/path.",
        ) from None
    return value.rstrip("/")


def _runtime_env(file: Path | str | None) -> dict[str, Any] | None:
    return runtime_env.read(Path(file).expanduser()) if file else None


def _secret(environ: Mapping[str, str], name: str) -> str | None:
    """What the file holds that the variable names, without the line's end; None where the variable is not set."""
    path = environ.get(name)
    if not path:
        return None
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{name} = '{path}' cannot be read: {error}.", hint="Name a text file that this user may read."
        ) from None
    if not secret:
        raise SettingsError(f"{name} = '{path}' is empty.", hint="Write the secret into it, on one line.")
    return secret


def _with_password(database_url: str, password: str | None) -> str:
    """The address with the password of the file; one that is in the address already would contradict it."""
    if password is None:
        return database_url
    scheme, separator, rest = database_url.partition("://")
    user, at, place = rest.rpartition("@")
    if not separator or not at or ":" in user:
        shown = _PASSWORD.sub(r"\1***\2", database_url)
        raise SettingsError(
            f"ADMETA_DATABASE_PASSWORD_FILE needs an address with a user and without a password, not '{shown}'.",
            hint="For example postgresql://admeta@db.example.org/admeta.",
        )
    return f"{scheme}://{user}:{quote(password, safe='')}@{place}"


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
