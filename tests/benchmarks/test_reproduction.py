"""The reproduction: its studies say what they claim, a home travels whole, the report is written from the database."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from admeta.theory import dema_gain
from benchmarks.reproduction import definitions, ledger, material, packing, report
from benchmarks.reproduction.__main__ import run_smoke
from benchmarks.reproduction.estimate import estimate, power
from benchmarks.reproduction.plots import Line, line_plot
from benchmarks.reproduction.work import SESSIONS, database_url
from search.definition import StudyDefinition
from search.space import FloatParameter
from search.states import Stage
from service.database import studies
from service.database.engine import make_engine, writing
from service.database.models import Run, Search
from service.database.schema import prepare

NINE = {"sgd", "sgdm", "adam", "adamw", "radam", "ranger", "adabelief", "admetar", "admetas"}
THIRTEEN = NINE | {"muon", "soap", "ademamix", "schedulefree"}
FINE_TUNING = ("cola", "stsb", "mrpc", "sst2", "conll2003")
COMPARISONS = (*FINE_TUNING, "gpt", "resnet20", "resnet110")
GAIN = {"sgd": 1.0, "sgdm": 10.0, "admetas": dema_gain(0.9)}
"""What a constant gradient of 1 becomes; 1 for optimizers whose step does not grow with the gradient."""
PAPER = definitions.FOLDER.parent / "paper"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A database with a study of two runs, one finished and one not, and a checkpoint and a log of each."""
    home = tmp_path / "home"
    prepare(database_url(home))
    engine = make_engine(database_url(home))
    definition = StudyDefinition.model_validate(definitions.tiny(_one("presets-resnet20")))
    view, _ = studies.create_study(engine, definition, max_queued=10)
    with writing(engine) as session:
        search = session.query(Search).filter_by(study_id=view.id, label="admetar-paper").one()
        for number, state in enumerate(("COMPLETE", "WAITING")):
            fields: dict[str, Any] = {
                "search_id": search.id,
                "trial_number": number,
                "stage": Stage.SEARCH,
                "seed": 100,
            }
            fields |= {"stage": Stage.SEARCH, "params": {"lr": 0.05}, "created_at": datetime.now(UTC)}
            ended = {"finished_at": datetime.now(UTC)} if state == "COMPLETE" else {}
            session.add(Run(**fields, **ended, state=state, value=0.5 - number))
            folder = home / "checkpoints" / view.id / "admetar-paper" / f"{number:05d}" / "search-100"
            (folder / "logs").mkdir(parents=True)
            (folder / "logs" / "attempt-0001.log").write_text("epoch 1\n")
            for epoch in (1, 2):
                (folder / f"epoch-{epoch:06d}.pt").write_bytes(random.Random(epoch).randbytes(100_000))
    engine.dispose()
    session_line = {
        "started_at": "2026-11-29T10:00:00",
        "finished_at": "2026-11-29T10:01:00",
        "cpus": 2,
        "commit": None,
    }
    (home / SESSIONS).write_text(json.dumps(session_line | {"cards": []}) + "\n")
    return home


def _one(name: str) -> dict[str, Any]:
    [definition] = definitions.load([name])
    return definition


@pytest.mark.parametrize("name", definitions.names())
def test_studies_validate_and_so_do_their_tiny_forms(name: str) -> None:
    study = StudyDefinition.model_validate(_one(name))
    assert study.task.init_from is None, "checkpoints of ended studies are dropped"
    tiny = StudyDefinition.model_validate(definitions.tiny(_one(name)))
    assert [spec.label for spec in tiny.optimizers] == [spec.label for spec in study.optimizers]


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_search_two_parameters_of_each_over_two_decades(name: str) -> None:
    study = StudyDefinition.model_validate(_one(name))
    assert {spec.label for spec in study.optimizers} == THIRTEEN
    for spec in study.optimizers:
        assert spec.space.keys() == {"lr", "weight_decay"}
        for parameter in spec.space.values():
            assert isinstance(parameter, FloatParameter)
            assert parameter.log
            assert parameter.high / parameter.low == pytest.approx(100)
        decoupled = spec.fixed.get("decoupled_weight_decay", spec.name not in ("adam", "sgd", "sgdm", "admetas"))
        assert decoupled == (spec.name not in ("adam", "sgd", "sgdm", "admetas"))
    budget = study.budget.model_dump(exclude={"trials_per_optimizer"}, exclude_none=True)
    assert budget == {}
    assert {spec.n_trials for spec in study.optimizers} == {None}
    assert study.training_seed not in study.confirm.all_seeds(study.training_seed)
    assert study.confirm.min_effect == 0.005


@pytest.mark.parametrize("name", COMPARISONS)
def test_decay_takes_the_same_share_of_a_weight_for_all(name: str) -> None:
    """Learning rate times gain times decay, at the middle of the rates; Adam, which scales it, has SGD's range."""
    study = StudyDefinition.model_validate(_one(name))
    spaces = {spec.label: spec.space for spec in study.optimizers}
    least = {
        label: math.sqrt(space["lr"].low * space["lr"].high) * GAIN.get(label, 1.0) * space["weight_decay"].low  # type: ignore[union-attr]
        for label, space in spaces.items()
    }
    assert spaces["adam"]["weight_decay"] == spaces["sgd"]["weight_decay"]
    for label, rate in least.items():
        assert label == "adam" or rate == pytest.approx(least["sgd"], rel=0.05)
    [muon] = [spec for spec in study.optimizers if spec.name == "muon"]
    middle = math.sqrt(spaces["adamw"]["lr"].low * spaces["adamw"]["lr"].high)  # type: ignore[union-attr]
    assert muon.fixed["others.lr"] == pytest.approx(middle)


def test_fine_tuning_studies_have_one_list_of_optimizers() -> None:
    first, *others = (_one(name)["optimizers"] for name in FINE_TUNING)
    assert all(one == first for one in others)
    assert _one("resnet20")["optimizers"] == _one("resnet110")["optimizers"]


def test_ablations_are_the_papers_rows() -> None:
    """Each row has the settings of the same row of studies/paper, its rate apart, which is searched."""
    theirs = StudyDefinition.model_validate(yaml.safe_load((PAPER / "cifar10-ablation.yaml").read_text()))
    rows = {spec.label: spec for spec in theirs.optimizers}
    for spec in StudyDefinition.model_validate(_one("ablation-resnet20")).optimizers:
        assert spec.fixed == rows[spec.label].fixed
        assert rows[spec.label].space.keys() == spec.space.keys() == {"lr"}


def test_estimates_grow_with_the_seeds() -> None:
    for raw in definitions.load():
        one = estimate(raw)
        assert 0 < one.seconds(one.n_confirm_least) < one.seconds(one.n_confirm_most)


def test_power_falls_with_the_spread_between_seeds() -> None:
    quiet, loud = (row.split(" | ") for row in power([0.001, 0.05], max_seeds=5, n_studies=2).splitlines()[2:])
    assert int(quiet[1]) < int(loud[1])
    assert (quiet[3], loud[3]) == ("100", "0")


def test_the_text_mixes_the_sources_and_is_the_same_each_time(tmp_path: Path) -> None:
    data = material.make_up(tmp_path / "data")
    (data / "glue" / "RTE").mkdir()
    (data / "glue" / "RTE" / "train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tOne.\tTwo.\tentailment\n")
    written = material.write_text(data).read_text()
    assert "One. Two." in written.splitlines()
    assert len(written.splitlines()) == 3 * 96 + 1 + 96  # CoLA, MRPC, STS-B; RTE; CoNLL
    assert material.write_text(data).read_text() == written


def test_a_report_of_studies_that_have_hardly_begun(home: Path, tmp_path: Path) -> None:
    written = tmp_path / "reproduction.md"
    report.write_report(home, written)
    assert "not all of it was run" in written.read_text()
    report.write_details(home, tmp_path / "details.md")


def test_a_home_travels_in_pieces(home: Path, tmp_path: Path) -> None:
    """The database, logs, and of the unfinished run alone its newest checkpoint."""
    pieces = packing.pack(home, tmp_path / "packed", piece_mib=0.02)
    assert len(pieces) > 1
    assert all(piece.stat().st_size <= 0.02 * packing.MIB + 1 for piece in pieces)
    moved = tmp_path / "moved"
    packing.unpack(list(reversed(pieces)), moved)
    assert ledger.read(moved) == ledger.read(home)
    assert len(ledger.read(moved)) == 2
    [checkpoint] = moved.rglob("*.pt")
    assert (checkpoint.parts[-3], checkpoint.name) == ("00001", "epoch-000002.pt")
    assert checkpoint.read_bytes() == (home / checkpoint.relative_to(moved)).read_bytes()
    assert len(list(moved.rglob("*.log"))) == 2
    with pytest.raises(SystemExit, match="there already"):
        packing.unpack(pieces, moved)


def test_checkpoints_that_do_not_fit_stay_behind(home: Path, tmp_path: Path) -> None:
    packing.unpack(packing.pack(home, tmp_path / "packed", at_most_mib=0.05), tmp_path / "moved")
    assert not list((tmp_path / "moved").rglob("*.pt"))
    assert ledger.read(tmp_path / "moved") == ledger.read(home)


def test_the_ledger_tells_what_was_lost_and_what_was_done_again() -> None:
    done = ledger.Entry(state="COMPLETE", value=0.5, n_attempts=1)
    begun = ledger.Entry(state="WAITING", value=None, n_attempts=1)
    again = ledger.Entry(state="COMPLETE", value=0.5, n_attempts=2)
    first, second = ("s", "sgd", 0, "search", 100), ("s", "sgd", 1, "search", 100)
    assert ledger.faults({first: done, second: begun}, {first: done, second: again}) == []
    assert ledger.faults({first: done}, {}) == [f"{first} is lost"]
    assert len(ledger.faults({first: done}, {first: again})) == 1


def test_a_plot_is_an_svg_with_a_path_for_each_line() -> None:
    line = Line(label="a < b", x=[1, 2, 3], y=[0.1, None, 0.3], low=[0.0, None, 0.2], high=[0.2, None, 0.4])
    flat = Line(label="flat", x=[1, 2], y=[0.2, 0.2])
    drawing = line_plot([line, flat], title="t", x_label="epoch", y_label="accuracy")
    root = ElementTree.fromstring(drawing)
    [group] = root.iter("{http://www.w3.org/2000/svg}g")
    assert [path.get("d", "").count("L") for path in group] == [3, 1, 1]
    assert "a < b" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert ElementTree.fromstring(line_plot([], title="none", x_label="x", y_label="y")).tag.endswith("svg")


@pytest.mark.slow
@pytest.mark.ray
def test_a_study_begun_on_one_machine_is_finished_on_another(tmp_path: Path) -> None:
    """Service, pause, pack, unpack, the rest, report: no run is lost or repeated, and what is written by hand stays."""
    assert run_smoke(tmp_path, ["presets-resnet20"]) == 0
    written = tmp_path / "reproduction.md"
    text = written.read_text(encoding="utf-8")
    assert "| admetas-paper | " in text
    for plot in (tmp_path / "reproduction").glob("*.svg"):
        assert f"(reproduction/{plot.name})" in text
    by_hand = text.replace(report.NO_READING, "\nAdmeta ties.\n")
    written.write_text(by_hand, encoding="utf-8")
    report.write_report(tmp_path / "second", written)
    assert written.read_text(encoding="utf-8") == by_hand != text


def test_every_number_of_the_report_comes_from_the_database_in_the_repository(tmp_path: Path) -> None:
    root = definitions.FOLDER.parents[1]
    packing.unpack([root / "benchmarks" / "data" / "reproduction.tar.00"], tmp_path / "home")
    written = tmp_path / "reproduction.md"
    kept = root / "docs" / "reproduction.md"
    written.write_text(kept.read_text())  # the reading is kept
    report.write_report(tmp_path / "home", written)
    assert written.read_text() == kept.read_text()
    report.write_details(tmp_path / "home", tmp_path / "details.md")
    assert "| adabelief | +2.25 | -0.08 to +4.58 | 0.050 | better |" in (tmp_path / "details.md").read_text()
    plots = sorted((tmp_path / "reproduction").iterdir())
    assert [plot.name for plot in plots] == sorted(plot.name for plot in (kept.parent / "reproduction").iterdir())
    assert all(plot.read_text() == (kept.parent / "reproduction" / plot.name).read_text() for plot in plots)
