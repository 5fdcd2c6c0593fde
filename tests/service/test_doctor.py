"""What a service rests on: healthy, and each illness with its advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.doctor import examine
from service.settings import Settings, load


def _advice(settings: Settings) -> dict[str, str]:
    return {finding.name: finding.advice for finding in examine(settings) if finding.advice}


def test_healthy(settings: Settings) -> None:
    assert _advice(settings) == {}
    before = sorted(settings.home.rglob("*"))
    examine(settings)
    assert sorted(settings.home.rglob("*")) == before


def test_a_fresh_machine_is_healthy(tmp_path: Path) -> None:
    settings = load({}, home=tmp_path / "not" / "yet")
    assert _advice(settings) == {}
    assert not settings.home.exists()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"database_url": "postgresql://u:secret@127.0.0.1:9/x"}, "database"),
        ({"database_url": "mysql://u@h/x"}, "database"),
        ({"ray_address": "127.0.0.1:9"}, "ray"),
        ({"storage": "/proc/x"}, "storage"),
    ],
)
def test_illnesses(tmp_path: Path, change: dict[str, str], name: str) -> None:
    settings = load({}, home=tmp_path, **change)  # type: ignore[arg-type]
    findings = {finding.name: finding for finding in examine(settings)}
    assert findings[name].advice
    assert "secret" not in str(findings)


def test_a_file_that_is_no_database(settings: Settings) -> None:
    (settings.home / "admeta.sqlite3").write_bytes(b"not a database, but long enough to be looked at" * 50)
    assert "database" in _advice(settings)
