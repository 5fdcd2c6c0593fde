"""admeta db: what it makes, what it says, what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from admeta.cli.app import run
from service.database import SqlStore
from service.database.engine import make_single_engine
from service.database.schema import head_revision, prepare
from tests.service.database.conftest import empty_url, server
from tests.service.database.fill import definition, leased

__all__ = ["empty_url", "server"]


def test_from_nothing_to_this_version(empty_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--database-url", empty_url]
    assert run(["db", "current", *options]) == 1
    captured = capsys.readouterr()
    assert f"tables: none; this version needs: {head_revision()}" in captured.out
    assert "--database-url that `admeta serve` has" in captured.err
    assert "admeta db upgrade" in captured.err
    assert run(["db", "upgrade", *options]) == 0
    assert f"went from nothing to revision {head_revision()}" in capsys.readouterr().out
    assert run(["db", "current", *options]) == 0
    assert run(["db", "upgrade", *options]) == 0
    assert f"are at revision {head_revision()}" in capsys.readouterr().out
    assert run(["db", "downgrade", "0001", "--yes", *options]) == 0
    assert "to revision 0001" in capsys.readouterr().out
    assert run(["db", "current", *options]) == 1
    assert run(["db", "upgrade", *options]) == 0
    assert "went from 0001 to" in capsys.readouterr().out


def test_looking_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["db", "current", "--home", str(tmp_path / "none")]) == 1
    assert str(tmp_path / "none" / "admeta.sqlite3") in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_a_database_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.sqlite3"
    path.write_text("no database, but long enough to be looked at " * 30)
    assert run(["db", "current", "--database-url", f"sqlite:///{path}"]) == 1
    assert "cannot be used" in capsys.readouterr().err


def test_downgrade_refuses_what_would_break(empty_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["-y", "--database-url", empty_url]
    assert run(["db", "downgrade", "base", *options]) == 1
    assert "no tables" in capsys.readouterr().err
    prepare(empty_url)
    for revision in (head_revision(), "9999", "x"):
        assert run(["db", "downgrade", str(revision), *options]) == 1
        assert "Choose one of: base, 0001" in capsys.readouterr().err
    engine = make_single_engine(empty_url)
    leased(SqlStore(engine), definition())
    engine.dispose()
    assert run(["db", "downgrade", "0001", *options]) == 1
    assert "1 studies have a driver now" in capsys.readouterr().err
    assert run(["db", "current", "--database-url", empty_url, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["found"] == found["needed"]
