"""The command line against a live service: output, errors, exit codes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from service.cli.app import run
from service.settings import Settings
from tests.service.fakes import definition, live


@pytest.fixture
def url(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with live(settings) as url:
        monkeypatch.setenv("ADMETA_URL", url)
        yield url


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "first.yaml"
    path.write_text(yaml.safe_dump(definition()))
    return path


@pytest.mark.usefixtures("url")
def test_a_study_from_submit_to_delete(
    study_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["submit", str(study_file)]) == 0
    assert "submitted: QUEUED" in capsys.readouterr().out
    assert run(["submit", str(study_file)]) == 0
    assert "exists already" in capsys.readouterr().out
    assert run(["submit", str(study_file), "--name", "second"]) == 0

    assert run(["status"]) == 0
    listed = capsys.readouterr().out
    assert "first" in listed
    assert "second" in listed
    assert run(["status", "first"]) == 0
    assert "0/4" in capsys.readouterr().out
    assert run(["trials", "first"]) == 0
    assert run(["compare", "first"]) == 0
    assert "not ended" in capsys.readouterr().err

    changes = ["--set", "optimizers.1.space.lr.low=1e-4", "--set", "priority=2"]
    assert run(["clone", "first", "third", *changes, "-o", "json"]) == 0
    cloned = json.loads(capsys.readouterr().out)
    assert (cloned["name"], cloned["priority"]) == ("third", 2)
    assert cloned["definition"]["optimizers"][1]["space"]["lr"]["low"] == 1e-4

    assert run(["pause", "first"]) == 0
    assert run(["resume", "first"]) == 0
    assert run(["cancel", "first"]) == 0
    assert "CANCELLED" in capsys.readouterr().out
    assert run(["cancel", "first"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: study 'first' is CANCELLED")
    assert "hint: " in error
    assert run(["watch", "first"]) == 1
    assert "CANCELLED" in capsys.readouterr().err

    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run(["delete", "first"]) == 1
    assert "Delete study first (CANCELLED) with 0 finished trials?" in capsys.readouterr().out
    assert run(["delete", "first", "--yes"]) == 0
    assert "is deleted" in capsys.readouterr().out
    assert run(["status", "first"]) == 1
    assert run(["delete", "second", "-y"]) == 1
    assert "'second' is QUEUED" in capsys.readouterr().err


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["status", "first"],
        ["trials", "first"],
        ["compare", "first"],
        ["tasks"],
        ["optimizers"],
        ["optimizers", "admetar"],
    ],
)
def test_json_and_yaml_say_the_same(study_file: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(["submit", str(study_file)])
    capsys.readouterr()
    assert run([*command, "--output", "json"]) == 0
    from_json = json.loads(capsys.readouterr().out)
    assert run([*command, "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == from_json
    assert run(command) == 0
    assert capsys.readouterr().out


@pytest.mark.usefixtures("url")
def test_export_by_the_name_of_the_file(study_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["submit", str(study_file), "--set", "budget.trials_per_optimizer=3"])
    for name in ("out.csv", "out.json", "out.parquet", "out.tex"):
        assert run(["export", "first", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 0
    capsys.readouterr()
    assert run(["export", "first", str(tmp_path / "out.xls")]) == 1
    assert "does not say its format" in capsys.readouterr().err
    assert run(["export", "none", str(tmp_path / "none.csv")]) == 1
    assert list(tmp_path.glob("none*")) == []
    assert run(["status", "first"]) == 0
    assert "0/3" in capsys.readouterr().out
    assert run(["importance", "first"]) == 0
    assert "has begun" in capsys.readouterr().out


def test_doctor(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--home", str(settings.home)]) == 0
    assert "ok    database" in capsys.readouterr().out
    assert run(["doctor", "--home", str(settings.home), "--ray-address", "127.0.0.1:9"]) == 1
    assert "FAIL  ray" in capsys.readouterr().out


@pytest.mark.usefixtures("url")
def test_a_broken_study_file_is_told_field_by_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("name: a b\ntask: {name: synthetic, epochs: .nan}\noptimizers: [{name: sgdm}]\n")
    assert run(["submit", str(path)]) == 1
    assert "task.epochs = 'nan'" in capsys.readouterr().err
    path.write_text("name: a b\ntask: {name: synthetic, epochs: 0}\noptimizers: [{name: sgdm}]\n")
    assert run(["submit", str(path)]) == 1
    error = capsys.readouterr().err
    assert "breaks 2 rules" in error
    assert "  task.epochs = 0: must be greater than or equal to 1" in error
    assert "  name = 'a b': must be 1 to 100" in error


@pytest.mark.usefixtures("url")
def test_errors_of_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "none"]) == 1
    assert "hint: GET /v1/studies" in capsys.readouterr().err
    assert run(["best", "--task", "digits", "--optimizer", "admetarr"]) == 1
    assert "did you mean 'admetar'" in capsys.readouterr().err
    assert run(["best", "--task", "digits", "--optimizer", "admetar"]) == 1
    assert "no finished trial" in capsys.readouterr().err


def test_no_service(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", "http://127.0.0.1:9"]) == 3
    assert "hint: Start one with `admeta serve`" in capsys.readouterr().err


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nonsense"]) == 2
    assert run(["best"]) == 2
    assert run(["submit", "/nowhere.yaml"]) == 1
    assert "No such file" in capsys.readouterr().err


def test_serve_refuses_what_it_cannot_do(settings: Settings, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = url.rsplit(":", 1)[1]
    assert run(["serve", "--home", str(settings.home), "--port", port]) == 1
    error = capsys.readouterr().err
    assert f"port {port} of 127.0.0.1 is in use" in error
    assert f"--port {int(port) + 1}" in error
    assert run(["serve", "--host", "0.0.0.0"]) == 1
    assert "other machines" in capsys.readouterr().err
    assert run(["serve", "--home", str(settings.home), "--database-url", "mysql://x", "--port", "0"]) == 1
    assert "mysql" in capsys.readouterr().err


def test_the_command_line_starts_without_the_server() -> None:
    code = (
        "import sys, json; from service.cli.app import run; code = run(['--help']);"
        "print(json.dumps([code, sorted({m.split('.')[0] for m in sys.modules})]))"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    code, loaded = json.loads(output.splitlines()[-1])
    assert code == 0
    assert not {"torch", "ray", "optuna", "fastapi", "sqlalchemy", "yaml"} & set(loaded)
