"""The demo's own decisions, with a service that runs nothing: names, resuming, Ctrl-C, the report."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from admeta.client import Client
from admeta.client.models import StudyView
from service import demo
from service.settings import Settings
from tests.service.fakes import definition, live


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(definition("toy")))
    return path


@pytest.fixture
def service(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    @contextmanager
    def running(_settings: Settings) -> Iterator[str]:
        with live(settings) as url:
            yield url

    monkeypatch.setattr("service.demo.server.running", running)
    return settings


def _ended(state: str) -> object:
    """A stand-in for following a study to its end."""

    def wait(client: Client, study: str, **_: object) -> StudyView:
        client.cancel(study)
        return client.study(study).model_copy(update={"state": state})

    return wait


def _run(settings: Settings, study_file: Path) -> tuple[int, str]:
    text = io.StringIO()
    code = demo.run(home=settings.home, study_file=study_file, console=Console(file=text, width=100))
    return code, text.getvalue()


def _names(settings: Settings) -> list[str]:
    with live(settings) as url, Client(url) as client:
        return [f"{study.name} {study.state}" for study in client.studies()]


def test_every_run_is_a_new_study(service: Settings, study_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.demo.Client.wait", _ended("COMPLETED"))
    for _ in range(3):
        code, text = _run(service, study_file)
        assert code == 0
    assert _names(service) == ["toy-3 CANCELLED", "toy-2 CANCELLED", "toy CANCELLED"]
    assert "Submitted study toy-3: synthetic, idle; admetar, sgdm." in text
    assert "no finished trial of optimizer 'sgdm'" in text
    assert f"admeta serve --home {service.home}" in text


def test_a_study_that_was_cut_off_goes_on(service: Settings, study_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live(service) as url, Client(url) as client:
        client.submit(definition("toy"))
    monkeypatch.setattr("service.demo.Client.wait", _ended("COMPLETED"))
    code, text = _run(service, study_file)
    assert code == 0
    assert "toy was interrupted earlier" in text
    assert _names(service) == ["toy CANCELLED"]


def test_a_study_that_failed_ends_the_demo_with_1(
    service: Settings, study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.demo.Client.wait", _ended("FAILED"))
    code, text = _run(service, study_file)
    assert code == 1
    assert "toy is FAILED" in text


def test_ctrl_c_cancels_the_study(service: Settings, study_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> StudyView:
        raise KeyboardInterrupt

    monkeypatch.setattr("service.demo.Client.wait", interrupted)
    code, text = _run(service, study_file)
    assert code == 130
    assert "cancelling study toy" in text
    assert _names(service) == ["toy CANCELLED"]
