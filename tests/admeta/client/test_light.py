"""The base installation: the client, the definition and the command line without any package of the server's."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HEAVY = ("alembic", "cmaes", "fastapi", "jinja2", "numpy", "optuna", "PIL", "prometheus_client", "pyarrow", "ray",
         "scipy", "sklearn", "sqlalchemy", "starlette", "torch", "torchvision", "transformers", "uvicorn")  # fmt: skip
_BLOCK = f"""
import sys
sys.modules.update(dict.fromkeys({HEAVY!r}))  # None there: importing raises ModuleNotFoundError
"""
_USE = """
import json, httpx
from admeta.client import AsyncClient, Client
from admeta.cli.app import run
from search.definition import StudyDefinition
study = StudyDefinition.model_validate({"name": "x", "task": {"name": "digits"}, "optimizers": [{"name": "admetar"}]})
sent = []
def answer(request):
    sent.append(json.loads(request.content))
    return httpx.Response(503, json={"error": "e", "detail": "d", "hint": "h"})
with Client("http://x", transport=httpx.MockTransport(answer)) as client:
    try:
        client.submit(study)
    except Exception as error:
        assert error.status == 503, error
codes = {}
for command in ("--help", "version", "list", "doctor", "serve", "db current", "token list", "demo"):
    codes[command] = run([*command.split(), *(["--url", "http://127.0.0.1:9"] if command == "list" else [])])
print(json.dumps([sent[0]["optimizers"][0]["name"], codes]))
"""


def test_without_the_servers_packages(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", _BLOCK + _USE], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    name, codes = json.loads(done.stdout.splitlines()[-1])
    assert name == "admetar"
    assert codes == {
        "--help": 0, "version": 0, "list": 3, "doctor": 0, "serve": 1, "db current": 1, "token list": 1, "demo": 1,
    }  # fmt: skip
    assert done.stderr.count("pip install 'admeta-search[server]'") == 3
    assert "Send the request to the service: --url" in done.stderr


def test_the_base_names_none_of_them() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    base = {requirement.partition(">")[0] for requirement in project["dependencies"]}
    assert base == {"httpx", "httpx-sse", "pydantic", "pyyaml", "rich", "typer"}


def test_the_client_loads_no_other_package_of_the_project() -> None:
    code = "import sys, json; from admeta.client import Client; Client(); print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(subprocess.check_output([sys.executable, "-c", code])))
    assert not loaded & {*HEAVY, "yaml", "typer", "search", "tasks", "service"}


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("--help", {"httpx", "yaml", "admeta.client.models", "search.definition"}),
        ("version", {"httpx", "yaml", "admeta.client.models", "search", "service"}),
        ("list --help", {"httpx", "yaml", "admeta.client.models", "search", "service"}),
        ("db current --home x", {"httpx", "admeta.client.models", "optuna", "search.definition", "tasks.registry"}),
    ],
)
def test_a_command_starts_without_what_it_does_not_need(command: str, unneeded: set[str], tmp_path: Path) -> None:
    code = f"import sys; from admeta.cli.app import run; run({command.split()}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert unneeded & {*done.stderr.splitlines()[-1].split()} == set()


@pytest.fixture(params=["folders", "files"])
def taken_names(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A user's folder in which `tasks`, `search` and `service` are his own."""
    for name in ("tasks", "search", "service"):
        place = tmp_path / (f"{name}/__init__.py" if request.param == "folders" else f"{name}.py")
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"raise RuntimeError('the {name} of the user is imported')")
    return tmp_path


def test_a_script_beside_folders_of_the_same_names(taken_names: Path) -> None:
    (taken_names / "script.py").write_text(
        "import httpx\n"
        "from admeta.client import Client, ClientError\n"
        "health = {'status': 'ok', 'version': '1', 'database': 'ok', 'ray': 'ok'}\n"
        "answer = lambda request: httpx.Response(200, json=health)\n"
        "with Client('http://x', transport=httpx.MockTransport(answer)) as client:\n"
        "    print(client.health().status)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=taken_names, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


@pytest.mark.parametrize(
    ("taken_names", "command", "code"),
    [
        ("folders", "--help", 0),
        ("folders", "list --url http://127.0.0.1:9", 3),
        ("folders", "doctor --url http://127.0.0.1:9 --home x", 1),
        ("folders", "db current --home x", 1),
        ("folders", "token list --home x", 0),
        ("folders", "paper studies --url http://127.0.0.1:9", 3),
        ("folders", "demo --home /dev/null", 1),
        ("files", "list --url http://127.0.0.1:9", 3),
        ("files", "serve --home x --storage s3://", 1),
    ],
    indirect=["taken_names"],
)
def test_the_command_line_beside_folders_of_the_same_names(taken_names: Path, command: str, code: int) -> None:
    line = [sys.executable, "-m", "admeta.cli", *command.split()]
    done = subprocess.run(line, cwd=taken_names, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "of the user" not in done.stderr
