"""Study files: the numbers people write, and refusals that name the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from admeta.client.studyfile import load, with_changes
from search.definition import StudyDefinition
from service.errors import StudyFileError

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.name)
def test_our_own_studies_are_valid(path: Path) -> None:
    definition = StudyDefinition.model_validate(load(path))
    assert definition.name == path.stem


def test_numbers_and_words(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("a: 1e-4\nb: 1.0e-9\nc: -1E3\nd: .5\ne: 10\nf: off\ng: yes\nh: true\ni: 2020-01-01\nj: 1.\n")
    assert load(path) == {
        "a": 1e-4, "b": 1e-9, "c": -1000.0, "d": 0.5, "e": 10,
        "f": "off", "g": "yes", "h": True, "i": "2020-01-01", "j": 1.0,
    }  # fmt: skip


def test_json_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_text('{"name": "x", "optimizers": [{"name": "sgdm"}]}')
    assert load(path)["optimizers"] == [{"name": "sgdm"}]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"name: [x", "line 1"),
        (b"name: x\nname: y\n", "'name' stands twice"),
        (b"- a\n- b\n", "holds list"),
        (b"", "holds NoneType"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: !!python/object:os.system x", "line 1"),
        (b"a: !!binary aGk=", "JSON cannot say"),
        (b"a: !!set {x}", "JSON cannot say"),
        (b"? [1, 2]\n: x\n", "line 1"),
    ],
)
def test_what_cannot_be_read_says_where(tmp_path: Path, text: bytes, part: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(text)
    with pytest.raises(StudyFileError, match=part) as caught:
        load(path)
    assert caught.value.hint


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match="No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(StudyFileError, match="Is a directory"):
        load(tmp_path)


def test_values_from_the_command_line() -> None:
    study = {"name": "x", "optimizers": [{"name": "sgdm", "space": {"lr": {"low": 0.1}}}]}
    changed = with_changes(
        study, ["optimizers.0.space.lr.low=1e-4", "budget.trials_per_optimizer=5", "confirm.seeds=[0, 1]", "name=a=b"]
    )
    assert changed["optimizers"][0]["space"]["lr"]["low"] == 1e-4
    assert changed["budget"] == {"trials_per_optimizer": 5}
    assert changed["confirm"] == {"seeds": [0, 1]}
    assert changed["name"] == "a=b"
    assert study["name"] == "x"


@pytest.mark.parametrize(
    "change", ["name", "=1", "a..b=1", "optimizers.x=1", "optimizers.3.name=1", "name.x=1", "a=[1"]
)
def test_changes_that_lead_nowhere(change: str) -> None:
    with pytest.raises(StudyFileError) as caught:
        with_changes({"name": "x", "optimizers": [{"name": "sgdm"}]}, [change])
    assert caught.value.hint
