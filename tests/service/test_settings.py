"""Flags before environment before defaults, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from service.database.engine import make_engine
from service.database.schema import prepare
from service.settings import SettingsError, is_loopback, load, make_home


def test_nothing_needs_to_be_set() -> None:
    settings = load({})
    home = Path.home() / ".admeta"
    assert settings.home == home
    assert settings.database_url == f"sqlite:///{home}/admeta.sqlite3"
    assert settings.storage == str(home / "checkpoints")
    assert settings.data == home / "data"
    assert settings.ray_address is None
    assert settings.url == "http://127.0.0.1:8000"


def test_flags_before_environment(tmp_path: Path) -> None:
    environ = {
        "ADMETA_HOME": str(tmp_path / "env"),
        "ADMETA_DATABASE_URL": "postgresql://u@h/d",
        "ADMETA_RAY_ADDRESS": "",
        "ADMETA_STORAGE": str(tmp_path / "x"),
        "ADMETA_DATA": str(tmp_path / "data"),
    }
    settings = load(environ)
    assert (settings.home, settings.database_url) == (tmp_path / "env", "postgresql://u@h/d")
    assert (settings.storage, settings.data) == (str(tmp_path / "x"), tmp_path / "data")
    assert settings.ray_address is None
    flags = load(environ, home=tmp_path / "flag", storage=str(tmp_path / "s"), ray_address="auto")
    assert (flags.home, flags.storage, flags.ray_address) == (tmp_path / "flag", str(tmp_path / "s"), "auto")


@pytest.mark.parametrize("url", ["postgresql://user:secret@host/db", "postgresql+psycopg://user:s/e?c@host:5432/db"])
def test_the_password_is_not_shown(url: str) -> None:
    settings = load({}, database_url=url)
    assert "secret" not in repr(settings)
    assert "s/e?c" not in settings.safe_database_url
    assert "secret" not in settings.safe_database_url
    assert settings.safe_database_url.startswith("postgresql")


@pytest.mark.parametrize("folder", ["a%2Fb", "a?b", "%41", "a b#c", "a@b:c", "ünï"])
def test_any_folder_can_be_the_home(tmp_path: Path, folder: str) -> None:
    """The address is built by SQLAlchemy, so that no character of the path is read as a part of an address."""
    settings = load({}, home=tmp_path / folder)
    make_home(settings.home)
    prepare(settings.database_url)
    assert [path.name for path in tmp_path.iterdir()] == [folder]
    assert (tmp_path / folder / "admeta.sqlite3").is_file()


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", tmp_path / "file" / "home", Path("/proc/home")):
        with pytest.raises(SettingsError, match=f"home '{home}' cannot be created.*--home or ADMETA_HOME"):
            make_home(home)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_other_machines_need_tokens(host: str) -> None:
    assert load({}, host=host).tokens_required


def test_loopback_needs_tokens_when_told_so() -> None:
    assert not load({}).tokens_required
    assert load({}, require_token=True).tokens_required
    assert load({"ADMETA_REQUIRE_TOKEN": "1"}).tokens_required
    assert not load({"ADMETA_REQUIRE_TOKEN": "1"}, require_token=False).tokens_required
    with pytest.raises(SettingsError, match=r"require_token = 'perhaps' must be a valid boolean.*ADMETA_REQUIRE_TOKEN"):
        load({"ADMETA_REQUIRE_TOKEN": "perhaps"})


def test_log_format() -> None:
    assert load({}).log_format == "text"
    assert load({"ADMETA_LOG_FORMAT": "json"}).log_format == "json"
    with pytest.raises(SettingsError, match="log_format = 'xml' must be 'text' or 'json'"):
        load({}, log_format="xml")


def test_quotas() -> None:
    assert load({}).quotas.max_body_bytes == 1 << 20
    environ = {"ADMETA_MAX_QUEUED": "7", "ADMETA_MAX_RUNNING": "2"}
    quotas = load(environ, max_running=3, max_trials=None).quotas
    assert (quotas.max_queued, quotas.max_running, quotas.max_trials) == (7, 3, 100_000)
    with pytest.raises(SettingsError, match=r"max_queued = '0' must be greater than or equal to 1.*ADMETA_MAX_QUEUED"):
        load({"ADMETA_MAX_QUEUED": "0"})
    with pytest.raises(SettingsError, match=r"max_trials = 'many' must be a valid integer.*ADMETA_MAX_TRIALS"):
        load({"ADMETA_MAX_TRIALS": "many"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_ports(port: int) -> None:
    with pytest.raises(SettingsError, match="port"):
        load({}, port=port)


@pytest.mark.parametrize("address", ["head:6379", "10.0.0.1:1", "[fe80::1]:65535", "ray-head.svc.local:6379", "auto"])
def test_clusters(address: str) -> None:
    assert load({}, ray_address=address).ray_address == address


@pytest.mark.parametrize(
    "address",
    ["head", "local", "head:port", "head:0", "h:65536", "ray://head:10001", "http://h:1", ":6379", "a b:1", "h:99999"],
)
def test_what_is_no_cluster(address: str) -> None:
    """Ray itself would raise one of five errors, each a traceback, or start a Ray of its own."""
    with pytest.raises(SettingsError, match=rf"ray_address = '{address}' must be HOST:PORT .*ADMETA_RAY_ADDRESS"):
        load({"ADMETA_RAY_ADDRESS": address})


@pytest.mark.parametrize("address", ["s3://bucket/x", "gs://bucket", "s3://bucket/x?endpoint_override=h:9000"])
def test_checkpoints_may_go_to_a_bucket(tmp_path: Path, address: str) -> None:
    assert load({}, home=tmp_path, storage=address).storage == address


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        ("ftp://host/x", "unknown kind; name a folder, or one of s3://"),
        ("s3:///x", "names no bucket"),
        ("s3://key:secret@bucket/x", "holds credentials"),
    ],
)
def test_what_no_checkpoint_can_go_to(tmp_path: Path, address: str, rule: str) -> None:
    with pytest.raises(SettingsError, match=rule) as refused:
        load({}, home=tmp_path, storage=address)
    assert "secret" not in str(refused.value)


def test_secrets_come_from_files(tmp_path: Path) -> None:
    password, token = tmp_path / "password", tmp_path / "token"
    password.write_text("p@ss/word\n")
    token.write_text("f" * 40 + "\n")
    environ = {"ADMETA_DATABASE_PASSWORD_FILE": str(password), "ADMETA_ADMIN_TOKEN_FILE": str(token)}
    settings = load(environ, database_url="postgresql://admeta@db:5432/admeta")
    assert settings.database_url == "postgresql://admeta:p%40ss%2Fword@db:5432/admeta"
    assert settings.admin_token == "f" * 40
    assert "p%40ss" not in settings.safe_database_url
    assert "ffff" not in repr(settings)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, r"needs an address with a user and without a password, not 'sqlite:////"),
        ("postgresql://admeta:secret@db/admeta", r"not 'postgresql://admeta:\*\*\*@db/admeta'"),
    ],
)
def test_a_password_file_goes_with_a_user_alone(tmp_path: Path, url: str | None, message: str) -> None:
    (tmp_path / "password").write_text("p")
    with pytest.raises(SettingsError, match=message):
        load({"ADMETA_DATABASE_PASSWORD_FILE": str(tmp_path / "password")}, database_url=url)


@pytest.mark.parametrize(("content", "message"), [(None, "cannot be read"), (" \n", "is empty")])
def test_a_secret_that_is_not_there(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=f"ADMETA_ADMIN_TOKEN_FILE = .*{message}"):
        load({"ADMETA_ADMIN_TOKEN_FILE": str(file)})


@pytest.mark.parametrize("name", ["notes.txt", "admeta", ".ssh"])
def test_a_folder_that_has_other_files_keeps_its_rights(tmp_path: Path, name: str) -> None:
    """As root the service would make /tmp its own, in which then nobody else can work."""
    tmp_path.chmod(0o1777)
    (tmp_path / name).touch()
    settings = load({}, home=tmp_path)
    for _ in range(2):
        make_home(tmp_path)
        prepare(settings.database_url)
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777
    assert (tmp_path / "admeta.sqlite3").stat().st_mode & 0o777 == 0o600


def test_an_empty_folder_and_one_that_an_image_prepared_become_homes(tmp_path: Path) -> None:
    for names in ((), ("checkpoints", "data", "lost+found")):
        tmp_path.chmod(0o755)
        for name in names:
            (tmp_path / name).mkdir()
        make_home(tmp_path)
        assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_only_its_owner_can_read_the_home_and_the_database(tmp_path: Path) -> None:
    """Of homes and files from before this rule too."""
    for home, made_before in ((tmp_path / "new", False), (tmp_path / "old", True)):
        if made_before:
            home.mkdir(mode=0o755)
            (home / "admeta.sqlite3").touch(mode=0o644)
        settings = load({}, home=home)
        make_home(settings.home)
        prepare(settings.database_url)
        engine = make_engine(settings.database_url)
        with engine.connect() as connection:
            connection.execute(text("SELECT count(*) FROM admeta_studies"))
            rights = {path.name: path.stat().st_mode & 0o777 for path in home.glob("admeta.sqlite3*")}
        engine.dispose()
        assert home.stat().st_mode & 0o777 == 0o700
        assert {"admeta.sqlite3", "admeta.sqlite3-wal"} <= rights.keys()
        assert {mode for name, mode in rights.items() if not name.endswith(".lock")} == {0o600}


def test_modules_that_definitions_may_name(tmp_path: Path) -> None:
    assert load({}).quotas.allow_imports == ("torch.optim", "pytorch_optimizer")
    assert load({"ADMETA_ALLOW_IMPORTS": "torch.optim, my_module"}).quotas.allow_imports == ("torch.optim", "my_module")
    with pytest.raises(SettingsError, match=r"allow_imports = 'a/b' must be module names .* ADMETA_ALLOW_IMPORTS"):
        load({}, allow_imports="a/b")
    assert load({"ADMETA_CODE": str(tmp_path)}).code == tmp_path
    with pytest.raises(SettingsError, match=r"--code .*/nowhere is not a folder"):
        load({}, code=tmp_path / "nowhere")
    with pytest.raises(SettingsError, match=r"--code .* is the service's home"):
        load({}, code=tmp_path, home=tmp_path)
