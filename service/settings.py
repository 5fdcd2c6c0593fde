"""Where the service keeps its files and where it listens: from flags, then the environment, then defaults.

Owns the names of the environment variables and the rules of their values. Reads the environment only in `load`; all
other code is passed a `Settings`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic.dataclasses import dataclass

from admeta.client.errors import ServiceError, StudyFileError
from admeta.client.text import without_secrets
from admeta.imports import DEFAULT_IMPORTS, is_module_name
from tasks.engine.folders import check_address, is_remote
from tasks.errors import ConfigError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
_ENV_HINT = "Ray's documentation names the fields of runtime environments, docs/cluster.md those to begin with."
Limit = Annotated[int, Field(ge=1)]


class SettingsError(ServiceError):
    """An environment variable or a flag has a value that cannot be used."""


def _as_modules(value: Any) -> Any:
    """The module names in a text with commas."""
    names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
    for name in names:
        if not is_module_name(name):
            raise ValueError("must be module names with commas between them, for example torch.optim,my_module")
    return names


def head_address(address: str) -> str:
    """The address itself. Raises a ValueError with the rule if it is not HOST:PORT."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})", address)
    if found is None or not 1 <= int(found[2]) <= 65_535:
        raise ValueError("must be HOST:PORT of the cluster's head, for example 10.0.0.5:6379")
    return address


def _as_cluster(address: str | None) -> str | None:
    return address if address in (None, "auto") else head_address(address)


Modules = Annotated[tuple[str, ...], BeforeValidator(_as_modules)]


class LogFormat(StrEnum):
    """Format of the log's lines: text for people, or one JSON object for each."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """Limits of one service. A study above `max_running` waits; a request above another limit is refused.

    Attributes:
        max_queued: studies that wait for their turn, over the whole database; one more gets 429.
        max_running: studies that this service drives at a time.
        max_trials: trials, confirm and sensitivity runs of one study, over all its optimizers; more get 422.
        max_body_bytes: size of a request's body; more get 413.
        allow_imports: modules whose objects, and those of modules below them, a definition may name by import path
            ("my_module:train"); any other path gets 422. What is named runs on the workers as their user.
    """

    max_queued: Limit = 1000
    max_running: Limit = 4
    max_trials: Limit = 100_000
    max_body_bytes: Limit = 1 << 20
    allow_imports: Modules = DEFAULT_IMPORTS


_LIMITS = tuple(Quotas.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where the service runs, and its limits.

    Attributes:
        home: folder of the SQLite file, the logs and, unless set otherwise, checkpoints and data.
        database_url: SQLAlchemy URL; not in the repr, because it may contain a password.
        admin_token: is accepted as an admin's token, for a service whose machine nobody can log in to. Not in the repr.
        ray_address: HOST:PORT of a cluster's head; auto: that of this machine's node; None starts Ray in the
            service's own process.
        runtime_env: what Ray prepares on its nodes for drivers and trials; None: nothing. Not in the repr, because its
            variables may be secret.
        storage: checkpoints: a folder that all workers see, or the address of a bucket (s3://…, gs://…).
        data: folder of the data sets.
        code: folder of the modules of one's own that drivers and trials can import. Ray sends it to their nodes as it
            is when a study's driver starts. None: none.
        host, port: where to listen.
        root_path: the path under which a proxy shows the service, for example /admeta; empty: none.
        require_token: ask for access tokens on loopback too; any other address always does.
        log_format: format of the log's lines.
        quotas: limits.
    """

    home: Path
    database_url: str = Field(repr=False, pattern="://")
    admin_token: str | None = Field(default=None, repr=False)
    ray_address: Annotated[str | None, AfterValidator(_as_cluster)]
    runtime_env: Mapping[str, Any] | None = Field(default=None, repr=False)
    storage: str
    data: Path
    code: Path | None = None
    host: str = DEFAULT_HOST
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65_535)
    root_path: str = Field(default="", pattern=r"^(/[A-Za-z0-9._~-]+)*$")
    require_token: bool = False
    log_format: LogFormat = LogFormat.TEXT
    quotas: Quotas = Field(default_factory=Quotas)

    @property
    def tokens_required(self) -> bool:
        """Whether requests must carry an access token."""
        return self.require_token or not is_loopback(self.host)

    @property
    def url(self) -> str:
        """The service's own address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.root_path}"

    @property
    def safe_database_url(self) -> str:
        """The database's URL without its password."""
        return without_secrets(self.database_url)


def load(environ: Mapping[str, str], **flags: Any) -> Settings:
    """The settings from flags, where None from the environment, where unset the defaults.

    Args:
        environ: the environment: ADMETA_HOME, ADMETA_DATABASE_URL and so on.
        flags: fields of `Settings` and of `Quotas`, and `runtime_env_file`, a path.

    Raises:
        SettingsError: a value cannot be used.
    """

    def given(name: str, default: Any = None) -> Any:
        value = flags.get(name)
        return value if value is not None else environ.get(_variable(name)) or default

    home = Path(given("home", "~/.admeta")).expanduser().absolute()
    env_file = flags.get("runtime_env_file") or environ.get("ADMETA_RUNTIME_ENV")
    limits = {name: given(name) for name in _LIMITS}
    listening = {name: flags[name] for name in ("host", "port") if flags.get(name) is not None}
    try:
        return Settings(
            home=home,
            database_url=_database_url(given("database_url"), home, _secret(environ, "ADMETA_DATABASE_PASSWORD_FILE")),
            admin_token=_secret(environ, "ADMETA_ADMIN_TOKEN_FILE"),
            ray_address=given("ray_address"),
            runtime_env=read_runtime_env(Path(env_file).expanduser()) if env_file else None,
            storage=_storage(given("storage", str(home / "checkpoints"))),
            data=Path(given("data", home / "data")).expanduser().absolute(),
            code=_code(given("code"), home),
            root_path=given("root_path", "").rstrip("/"),
            require_token=given("require_token", False),  # noqa: FBT003
            log_format=given("log_format", LogFormat.TEXT),
            quotas=Quotas(**{name: value for name, value in limits.items() if value is not None}),
            **listening,
        )
    except ValidationError as error:
        raise _refusal(error) from None


def make_home(home: Path) -> None:
    """Create the service's home, and let only its owner read it.

    A folder that has other files too, such as /tmp, keeps its rights; the database in it is its owner's alone.

    Raises:
        SettingsError: it cannot be created.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if all(_OF_HOME.fullmatch(path.name) for path in home.iterdir()):
            keep_private(home)
    except OSError as error:
        raise SettingsError(
            f"home '{home}' cannot be created: {error.strerror}.", hint="Choose another with --home or ADMETA_HOME."
        ) from None


_OF_HOME = re.compile(r"admeta\.sqlite3.*|logs|checkpoints|data|lost\+found")
"""Names in a folder that is a home and nothing else."""


def keep_private(path: Path) -> None:
    """Let only its owner use a file or folder; one that belongs to another user stays as it is."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        with suppress(PermissionError):
            path.chmod(mode & 0o700)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _variable(name: str) -> str:
    return f"ADMETA_{name.upper()}"


def _refusal(error: ValidationError) -> SettingsError:
    """The first rule that is broken, with the names of the flag and of the variable."""
    problem = error.errors()[0]
    name = str(problem["loc"][-1])
    rule = problem["msg"].replace("Input should", "must").replace("String should", "must")
    rule = rule.removeprefix("Value error, ")
    value = without_secrets(str(problem["input"]))
    if name == "database_url":
        rule = "must look like dialect://…, for example sqlite:////var/lib/admeta/admeta.sqlite3"
    hint = f"Set it with --{name.replace('_', '-')}, or leave it out for the default."
    if name not in ("host", "port"):
        hint = f"Set it with --{name.replace('_', '-')} or {_variable(name)}, or leave it out for the default."
    return SettingsError(f"{name} = {value!r} {rule}.", hint=hint)


def _database_url(url: str | None, home: Path, password: str | None) -> str:
    """The database's address, by default the SQLite file in the home, with the password of the file where one is named.

    An address that already has a password would contradict the file.
    """
    from sqlalchemy import URL, make_url  # the command line reads the default settings without SQLAlchemy
    from sqlalchemy.exc import ArgumentError

    if url is None:
        default = URL.create("sqlite", database=str(home / "admeta.sqlite3"))
        url = default.render_as_string(hide_password=False)
    if password is None:
        return url
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    if parsed is None or not parsed.username or parsed.password is not None:
        raise SettingsError(
            f"ADMETA_DATABASE_PASSWORD_FILE needs an address with a user and without a password, not '{url}'.",
            hint="For example postgresql://admeta@db.example.org/admeta.",
        )
    return parsed.set(password=password).render_as_string(hide_password=False)


def _code(value: str | Path | None, home: Path) -> Path | None:
    if value is None:
        return None
    path = Path(value).expanduser().absolute()
    if not path.is_dir():
        raise SettingsError(f"--code {path} is not a folder.", hint="Name the folder that contains the modules.")
    if path == home:  # a home inside the folder is left out (service.ray.cluster.own_files)
        hint = "Move the modules into a folder of their own: the home's database and logs would be sent to the workers."
        raise SettingsError(f"--code {path} is the service's home.", hint=hint)
    return path


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


def _secret(environ: Mapping[str, str], name: str) -> str | None:
    """The content of the file that the variable names, without the end of the line; None where it is not set."""
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


def read_runtime_env(path: Path) -> dict[str, Any]:
    """Ray's runtime environment from a JSON or YAML file, in Ray's own form; files that it names are relative to it.

    Raises:
        SettingsError: no such file, no mapping in it, or a module that is not there.
    """
    from admeta.client import studyfile  # the command line reads settings without a file, and without YAML

    try:
        found = studyfile.load(path)
    except StudyFileError as error:
        raise SettingsError(f"runtime environment: {error.detail}", hint=_ENV_HINT) from None
    if not all(isinstance(key, str) for key in found):
        raise SettingsError(f"runtime environment '{path}': the names of its fields must be text.", hint=_ENV_HINT)
    modules = found.get("py_modules", [])
    if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
        raise SettingsError(f"runtime environment '{path}': py_modules must be a list of texts.", hint=_ENV_HINT)
    if modules:
        found["py_modules"] = [_absolute(module, path) for module in modules]
    if isinstance(folder := found.get("working_dir"), str):
        found["working_dir"] = _absolute(folder, path)
    return found


def _absolute(name: str, path: Path) -> str:
    """The absolute path of a local file; an address as it is."""
    if "://" in name:
        return name
    place = (path.absolute().parent / Path(name).expanduser()).resolve()
    if not place.exists():
        raise SettingsError(f"runtime environment '{path}': there is no {place}.", hint=_ENV_HINT)
    return str(place)
