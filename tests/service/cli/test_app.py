"""What holds for all commands, and the commands on the service itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from admeta.cli.app import build
from admeta.cli.output import say
from admeta.client import Client
from admeta.client.terminal import FittedTable, console
from service.settings import Settings
from tests.service.fakes import live

Say = Callable[..., tuple[int, str, str]]


def test_every_command_says_what_it_does_and_how_it_writes() -> None:
    own_form = {"serve", "worker", "demo", "export", "new task"}
    groups = typer.main.get_command(build()).commands.items()  # type: ignore[attr-defined]
    leaves = [leaf for name, command in groups for leaf in _leaves(name, command)]
    assert len(leaves) > 30
    for name, command in leaves:
        options = {option for parameter in command.params for option in parameter.opts}
        assert command.help, name
        assert "--output" in options or name in own_form, name


def _leaves(name: str, command: Any) -> list[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        return [(name, command)]
    return [leaf for part, inner in command.commands.items() for leaf in _leaves(f"{name} {part}", inner)]


def test_the_version_is_an_option_too(say: Say) -> None:
    assert say("--version") == say("version")


def test_doctor(settings: Settings, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admeta.client.exchange.DEFAULT_URL", "http://127.0.0.1:9")
    line = f"doctor --home {settings.home}"
    code, out, _ = say(line)
    assert code == 0
    assert "ok    database" in out
    code, out, _ = say(f"{line} --ray-address 127.0.0.1:9")
    assert code == 1
    assert "FAIL  ray" in out
    findings = json.loads(say(f"{line} -o json")[1])
    assert {finding["name"] for finding in findings} >= {"versions", "service", "database", "ray", "gpus", "storage"}
    assert all(finding["ok"] for finding in findings)


def test_serve_refuses_what_it_cannot_do(settings: Settings, empty: str, say: Say) -> None:
    port = empty.rsplit(":", 1)[1]
    code, _, err = say(f"serve --home {settings.home} --port {port}")
    assert code == 1
    assert f"port {port} of 127.0.0.1 is in use" in err
    assert f"--port {int(port) + 1}" in err
    code, _, err = say(f"serve --home {settings.home} --host 0.0.0.0")
    assert code == 1
    assert "other machines" in err
    code, _, err = say(f"serve --home {settings.home} --database-url mysql://x --port 0")
    assert code == 1
    assert "mysql" in err


@pytest.mark.parametrize("taken", [".", "logs"])
def test_a_home_that_cannot_be_used_is_one_error(say: Say, tmp_path: Path, taken: str) -> None:
    (tmp_path / "home").mkdir()
    path = tmp_path / "home" / taken
    if taken == ".":
        (tmp_path / "home").rmdir()
        path = tmp_path / "home"
    path.write_text("")
    code, _, err = say(f"serve --home {tmp_path / 'home'} --port 0")
    assert code == 1
    assert err.startswith(f"error: {'home' if taken == '.' else 'log'} '{path}")
    assert "hint: " in err
    assert "--home or ADMETA_HOME" in err


def test_the_command_line_starts_without_the_server() -> None:
    code = (
        "import sys, json; from admeta.cli.app import run; code = run(['--help']);"
        "print(json.dumps([code, sorted(sys.modules)]))"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    code, loaded = json.loads(output.splitlines()[-1])
    assert code == 0
    assert not {"torch", "ray", "optuna", "fastapi", "sqlalchemy", "yaml", "numpy"} & set(loaded)
    assert {name for name in loaded if name.partition(".")[0] == "search"} <= {"search", "search.states"}


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u@127.0.0.1:9/db?password=hunter2",
        "postgresql://u:hunter2@127.0.0.1:9/db",
        "postgresql://u:half@hunter2@127.0.0.1:9/db",
        "mysql://u:hunter2@h/db",
    ],
)
@pytest.mark.parametrize("command", ["db current", "doctor", "token list"])
def test_no_command_prints_a_password(say: Say, tmp_path: Path, command: str, address: str) -> None:
    code, out, err = say(f"{command} --home {tmp_path} --database-url {address}")
    assert code == 1
    assert "hunter2" not in out + err
    assert "database" in (out + err).lower()


@pytest.mark.parametrize(
    "address", ["http://u:hunter2@127.0.0.1:9", "http://u:half@hunter2@127.0.0.1:9", "http://u:hunter2@[::1"]
)
def test_no_address_of_a_service_is_printed_with_its_password(say: Say, tmp_path: Path, address: str) -> None:
    for command in ("list", f"doctor --home {tmp_path}"):
        code, out, err = say(f"{command} --url {address}")
        assert code in (1, 3)
        assert "hunter2" not in out + err
        assert "u:***@" in out + err


ASKING = ["compare digits-four", "show digits-four", "show digits-four -o json", "list -o yaml", "optimizers"]
EACH = """
import sys
from admeta.cli import main
for line in sys.argv[1:]:
    sys.argv = ["admeta", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, line
    print(chr(0), end="", flush=True)
"""


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_every_console_encoding(filled: str, encoding: str) -> None:
    lines = ["--help", *(f"{line} --url {filled}" for line in ASKING)]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", EACH, *lines], capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    *shown, rest = done.stdout.decode(encoding).split("\0")
    assert len(shown) == len(lines)
    assert all(shown)
    assert rest == ""
    assert ("+/-" in shown[1]) == (encoding == "ascii")
    assert json.loads(shown[3])["name"] == "digits-four"


def test_text_of_others_does_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J a\rb \u202etxt")
    assert capsys.readouterr().out == "red \\x1b]0;title\\x07 \\x9b2J a\nb \\u202etxt\n"
    table = FittedTable("name")
    table.add_row("a\x1b[2Jb")
    console().print(table)
    assert "a\\x1b[2Jb" in capsys.readouterr().out


def test_a_service_on_this_machine_answers_whatever_the_proxy(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    with live(settings) as url, Client(url) as client:
        assert client.health().status == "ok"
