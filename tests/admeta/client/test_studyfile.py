"""Study files: the numbers people write, and refusals that name the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from admeta.client.errors import StudyFileError
from admeta.client.studyfile import dump, load, parse, with_changes
from search.definition import StudyDefinition

STUDIES = Path(__file__).resolve().parents[3] / "studies"


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


AMBIGUOUS = ["010", "08", "-012", "00", "0b11", "1:30", "12:30:45", "1:30.5", "1_000"]


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_numbers_that_yaml_1_1_reads_otherwise_are_refused_with_their_field(text: str) -> None:
    with pytest.raises(StudyFileError, match=rf"different values: budget\.max_hours = {text}\.") as caught:
        parse(f"name: x\nbudget: {{max_hours: {text}}}\n", source="the study")
    assert "quote it" in caught.value.hint
    with pytest.raises(StudyFileError, match=rf"different values: budget\.max_hours = {text}\."):
        with_changes({}, [f"budget.max_hours={text}"])
    with pytest.raises(StudyFileError, match=rf"different values: a\.choices\.1 = {text}\."):
        with_changes({}, [f"a.choices=[1, {text}]"])
    assert with_changes({}, [f"name='{text}'"]) == {"name": text}


def test_a_file_with_several_such_numbers_names_them_all() -> None:
    text = "name: x\ntask: {name: digits, epochs: 010}\nbudget: {trials_per_optimizer: 1, max_hours: 1:30}\n"
    with pytest.raises(StudyFileError, match=r"task\.epochs = 010, budget\.max_hours = 1:30"):
        parse(text, source="the study")


def test_numbers_of_yaml_1_2() -> None:
    assert with_changes({}, ["a=0o17", "b=0x1F", "c=+7", "d=-0", "e=0.5", "f=0"]) == {
        "a": 15, "b": 31, "c": 7, "d": 0, "e": 0.5, "f": 0,
    }  # fmt: skip


def test_what_is_written_is_read_as_the_same() -> None:
    values = [
        *AMBIGUOUS,
        "1e-4",
        "0o17",
        "on",
        "~",
        "",
        "null",
        "true",
        "2026-01-01",
        "a: b",
        "é",
        1e-4,
        1e-9,
        10,
        0.1,
        True,
        None,
    ]
    assert parse(dump({"values": values, "nested": {"choices": [[0.9, 0.999]]}}), source="x") == {
        "values": values, "nested": {"choices": [[0.9, 0.999]]},
    }  # fmt: skip


def test_json_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_text('{"name": "x", "optimizers": [{"name": "sgdm"}]}')
    assert load(path)["optimizers"] == [{"name": "sgdm"}]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"name: [x", "line 1"),
        (b"name: x\nname: y\n", "'name' occurs twice"),
        (b"- a\n- b\n", "holds a list"),
        (b"", "holds nothing"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: !!python/object:os.system x", "line 1"),
        (b"a: !!binary aGk=", "JSON cannot express"),
        (b"a: !!set {x}", "JSON cannot express"),
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


def test_a_change_within_a_name_makes_it_an_object() -> None:
    study = {"name": "x", "task": "digits", "optimizers": ["adamw", "sgdm"], "pruner": "asha"}
    changes = ["task.epochs=4", "optimizers.1.space.lr.low=1e-4", "pruner.min_epochs=2"]
    assert with_changes(study, changes) == {
        "name": "x",
        "task": {"name": "digits", "epochs": 4},
        "optimizers": ["adamw", {"name": "sgdm", "space": {"lr": {"low": 1e-4}}}],
        "pruner": {"name": "asha", "min_epochs": 2},
    }


@pytest.mark.parametrize(
    "change", ["name", "=1", "a..b=1", "optimizers.x=1", "optimizers.3.name=1", "name.x=1", "a=[1"]
)
def test_changes_that_lead_nowhere(change: str) -> None:
    with pytest.raises(StudyFileError) as caught:
        with_changes({"name": "x", "optimizers": [{"name": "sgdm"}]}, [change])
    assert caught.value.hint


def test_a_name_with_a_dot_is_found_where_there_is_one() -> None:
    study = {"optimizers": [{"name": "muon", "space": {"others.lr": {"high": 0.1}, "lr": {"high": 1.0}}}]}
    changed = with_changes(study, ["optimizers.0.space.others.lr.high=0.5", "optimizers.0.space.lr.high=2.0"])
    assert changed["optimizers"][0]["space"] == {"others.lr": {"high": 0.5}, "lr": {"high": 2.0}}
