"""admeta db: what it makes, what it says, what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.app import run
from service.database.engine import make_single_engine
from service.database.schema import downgrade, head_revision
from tests.service.database.conftest import empty_url, server

__all__ = ["empty_url", "server"]


def test_from_nothing_to_this_version(empty_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--database-url", empty_url]
    assert run(["db", "status", *options]) == 1
    captured = capsys.readouterr()
    assert f"tables: none; this version needs: {head_revision()}" in captured.out
    assert "admeta db upgrade" in captured.err
    assert run(["db", "upgrade", *options]) == 0
    assert f"went from nothing to revision {head_revision()}" in capsys.readouterr().out
    assert run(["db", "status", *options]) == 0
    assert run(["db", "upgrade", *options]) == 0
    assert f"are at revision {head_revision()}" in capsys.readouterr().out
    engine = make_single_engine(empty_url)
    downgrade(engine, "0001")
    engine.dispose()
    assert run(["db", "status", *options]) == 1
    assert run(["db", "upgrade", *options]) == 0
    assert "went from 0001 to" in capsys.readouterr().out


def test_status_makes_nothing(tmp_path: Path) -> None:
    assert run(["db", "status", "--home", str(tmp_path / "none")]) == 1
    assert not (tmp_path / "none").exists()


def test_a_database_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.sqlite3"
    path.write_text("no database, but long enough to be looked at " * 30)
    assert run(["db", "status", "--database-url", f"sqlite:///{path}"]) == 1
    assert "cannot be used" in capsys.readouterr().err
