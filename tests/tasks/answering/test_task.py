"""SQuAD on the engine: windows, predictions from logits, both versions' scores, files, resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tasks.answering.squad import read_squad
from tasks.engine.run import TrainingRun
from tasks.engine.task import load_task
from tasks.errors import DataError
from tasks.registry import parse_config
from tasks.runs import check, open_run

NAMES = ["Ada", "Bob", "Cleo", "Dora", "Egon"]
TOWNS = ["Bonn", "Oslo", "Rome", "Yverdon", "Zug"]
FILLER = "and then it rained for a long while on all of them "


def squad(n: int, *, seed: int, unanswerable: bool, filler: int = 0) -> dict[str, Any]:
    """n passages of an article each, "<name> lives in <town>.", and a question about a name in it or not."""
    rng = np.random.default_rng(seed)
    articles = []
    for index in range(n):
        first, second, absent = rng.permutation(NAMES)[:3]
        towns = rng.permutation(TOWNS)[:2]
        passage = f"{first} lives in {towns[0]}. {FILLER * filler}{second} lives in {towns[1]}."
        qas = [
            {
                "id": f"{seed}-{index}-{name}",
                "question": f"Where does {name} live?",
                "answers": [{"text": town, "answer_start": passage.rindex(town)}],
            }
            for name, town in ((str(first), str(towns[0])), (str(second), str(towns[1])))
        ]
        if unanswerable:
            qas.append({"id": f"{seed}-{index}-?", "question": f"Where does {absent} live?", "answers": []})
        articles.append({"title": str(index), "paragraphs": [{"context": passage, "qas": qas}]})
    return {"version": "test", "data": articles}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "squad"
    folder.mkdir(parents=True)
    for version, unanswerable in (("v1.1", False), ("v2.0", True)):
        (folder / f"train-{version}.json").write_text(json.dumps(squad(40, seed=1, unanswerable=unanswerable)))
        (folder / f"dev-{version}.json").write_text(json.dumps(squad(12, seed=2, unanswerable=unanswerable, filler=12)))
    return tmp_path / "data"


def config(version: int = 1, **fields: Any) -> Any:
    base = {"name": f"squad_v{version}", "model": "tiny", "max_length": 96, "doc_stride": 16, "batch_size": 8}
    return parse_config({**base, **fields})


def start(data_dir: Path, cfg: Any) -> TrainingRun:
    run = open_run(cfg, optimizer="adamw", params={"lr": 1e-3}, seed=0, data_dir=data_dir, device="cpu")
    assert isinstance(run, TrainingRun)
    return run


def load(data_dir: Path, cfg: Any) -> Any:
    return load_task(cfg, data_dir=data_dir, device=torch.device("cpu"))


def test_windows_hold_answers_and_nothing_else_is_one(data_dir: Path) -> None:
    data = load(data_dir, config(2)).data
    windows, questions = data.windows["test"], data.questions["test"]
    columns, rows = windows.token_columns, windows.row_columns
    answered: dict[int, set[str]] = {}
    seen: dict[int, set[int]] = {}
    for row, owner in enumerate(rows["question"].tolist()):
        question = questions.questions[owner]
        passage, place = questions.passages[question.passage], int(windows.starts[row])
        own = slice(place, int(windows.starts[row + 1]))
        assert windows.lengths[row] <= 96
        inside = columns["passage"][own] > 0
        for begin, end in zip(columns["begin"][own][inside], columns["end"][own][inside], strict=True):
            seen.setdefault(owner, set()).update(range(begin, end))
        start, stop, none = (int(rows[name][row]) for name in ("start", "stop", "none"))
        if start != none:
            answered.setdefault(owner, set()).add(
                passage[columns["begin"][place + start] : columns["end"][place + stop]]
            )
        else:
            assert stop == none
    assert len(windows) > 2 * len(questions.questions)  # the filler does not fit into one window
    for number, question in enumerate(questions.questions):
        wanted = {question.answers[0].text} if question.answers else None
        assert answered.get(number) == wanted
        passage = questions.passages[question.passage]
        assert seen[number] >= {i for i, character in enumerate(passage) if character.isalnum()}


def know_the_answers(task: Any, monkeypatch: pytest.MonkeyPatch, *, none_bias: float = 0.0) -> None:
    """Let the model be sure of each window's own start and stop."""

    def outputs(model: Any, batch: Any) -> Any:
        width = batch["input_ids"].shape[1]
        starts, stops = (torch.nn.functional.one_hot(batch[name], width).float() * 9 for name in ("start", "stop"))
        starts.scatter_add_(1, batch["none"][:, None], torch.full((len(starts), 1), none_bias))
        return type("Output", (), {"start_logits": starts, "end_logits": stops})

    monkeypatch.setattr(task, "outputs", outputs)


def test_sure_predictions_score_1(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("val", "test"):
        task = load(data_dir, config(1))
        know_the_answers(task, monkeypatch)
        scores = task.evaluate(torch.nn.Identity(), split)
        assert scores["f1"] == scores["exact_match"] == 1.0
        predictions = task.predict(torch.nn.Identity(), split)
        assert all(text == q.answers[0].text for text, q in zip(predictions.texts, predictions.questions, strict=True))
        assert all(len(best) == 20 and best[0].score == 18.0 for best in predictions.best)


def test_a_threshold_decides_on_no_answer(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # "None" scores 20, and 38 where the window has no answer; the best span 18, or 0 to 9 there: margins of 2 and ≥ 29.
    scores = {}
    for threshold in (0.0, 16.0, "tuned"):
        task = load(data_dir, config(2, no_answer_threshold=threshold))
        know_the_answers(task, monkeypatch, none_bias=20.0)
        scores[threshold] = task.evaluate(torch.nn.Identity(), "test")
    silent = scores[0.0]
    assert silent["f1"] == silent["exact_match"] == pytest.approx(1 / 3)  # "none" is right for a third
    for best in (scores[16.0], scores["tuned"]):
        assert best["f1"] == best["exact_match"] == 1.0
    assert silent["best_f1"] == silent["best_exact_match"] == 1.0


@pytest.mark.parametrize("version", [1, 2])
def test_a_run_and_its_exact_resume(data_dir: Path, version: int) -> None:
    whole = start(data_dir, config(version))
    first, second = whole.advance(), whole.advance()
    extra = {"val_best_f1", "val_best_exact_match"} if version == 2 else set()
    assert set(second.metrics) == {"val_f1", "val_exact_match", "val_loss", "train_loss", *extra}
    assert second.metrics["train_loss"] < first.metrics["train_loss"]
    environment = whole.environment()
    assert environment["n_val_questions"] == (8 if version == 1 else 12)
    assert environment["n_test_questions"] == (24 if version == 1 else 36)
    stopped, resumed = start(data_dir, config(version)), start(data_dir, config(version))
    stopped.advance()
    resumed.load_state_dict(stopped.state_dict())
    assert resumed.advance().metrics == second.metrics
    assert resumed.test() == whole.test()


def test_validation_is_of_other_articles(data_dir: Path) -> None:
    data = load(data_dir, config(1)).data
    questions = data.questions["val"]
    owners = data.windows["val"].row_columns["question"]
    held_out, trained = ({questions.questions[i].passage for i in owners[part.rows]} for part in (data.val, data.train))
    assert len(held_out) == 4
    assert len(trained) == 36
    assert not held_out & trained


def test_long_questions_are_cut(data_dir: Path) -> None:
    path = data_dir / "squad" / "train-v1.1.json"
    raw = json.loads(path.read_text())
    raw["data"][0]["paragraphs"][0]["qas"][0]["question"] = "  where " * 300
    path.write_text(json.dumps(raw))
    task = load(data_dir, config(1, max_length=96, doc_stride=20))
    assert task.record()["n_truncated_questions"] == 1
    assert task.data.windows["val"].lengths.max() <= 96


def test_what_does_not_fit_is_refused(data_dir: Path) -> None:
    with pytest.raises(ValidationError, match="doc_stride 24 must be less than max_length − 72 = 24"):
        config(1, max_length=96, doc_stride=24)
    with pytest.raises(ValidationError):
        config(2, no_answer_threshold="best")
    folder = data_dir / "squad"
    (folder / "train-v1.1.json").write_text((folder / "train-v2.0.json").read_text())
    with pytest.raises(DataError, match=r"question '1-0-\?' has no answer.*use the task squad_v2"):
        check(config(1), data_dir=data_dir)
    one = squad(1, seed=3, unanswerable=False)
    (folder / "train-v1.1.json").write_text(json.dumps(one))
    with pytest.raises(DataError, match="all questions are of one passage"):
        check(config(1, batch_size=1), data_dir=data_dir)
    (folder / "dev-v1.1.json").unlink()
    with pytest.raises(DataError, match=r"dev-v1\.1\.json is missing; squad_v1 needs train-v1\.1\.json"):
        check(config(1), data_dir=data_dir)


def test_nothing_there_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def offline(*args: Any, **options: Any) -> Any:
        raise ConnectionError("no route to host")

    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(DataError, match=r"squad_v2 is not in .*Put train-v2\.0\.json and dev-v2\.0\.json there"):
        check(config(2), data_dir=tmp_path)


def test_what_the_hub_has_becomes_files(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {
            "id": qa["id"],
            "title": article["title"],
            "context": paragraph["context"],
            "question": qa["question"],
            "answers": {name: [answer[name] for answer in qa["answers"]] for name in ("text", "answer_start")},
        }
        for article in squad(12, seed=1, unanswerable=True)["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    monkeypatch.setattr("datasets.load_dataset", lambda name, *args, **options: {"train": rows, "validation": rows})
    empty = data_dir.parent / "empty"
    empty.mkdir()
    fetched = load(empty, config(2, batch_size=4)).data.questions["test"]
    (data_dir / "own.json").write_text(json.dumps(squad(12, seed=1, unanswerable=True)))
    own = read_squad(data_dir / "own.json", unanswerable="keep", on_bad_answer="refuse")
    assert fetched == own
