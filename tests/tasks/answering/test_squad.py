"""SQuAD's files: what is read, and what is refused with the question or the place in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.answering.squad import QuestionSet, read_squad
from tasks.errors import DataError
from tests.tasks.shared_data import shared_case

PASSAGE = "The Rhine flows through Köln 🏰 and Basel."


def content() -> dict[str, Any]:
    asked = {"id": "q1", "question": "What flows?", "answers": [{"text": "Rhine", "answer_start": 4}]}
    other = {"id": "q2", "question": "Where?", "answers": [{"text": "Basel", "answer_start": PASSAGE.index("Basel")}]}
    none = {"id": "q3", "question": "Why?", "answers": [], "is_impossible": True, "plausible_answers": [{"x": 1}]}
    first = {"title": "Rhine", "paragraphs": [{"context": PASSAGE, "qas": [asked, other]}]}
    second = {"title": "Nothing", "paragraphs": [{"context": "Empty.", "qas": [none]}]}
    return {"version": "v2.0", "data": [first, second]}


def read(tmp_path: Path, raw: Any, **options: Any) -> QuestionSet:
    path = tmp_path / "train-v2.0.json"
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return read_squad(path, **{"unanswerable": "keep", "on_bad_answer": "refuse", **options})


def test_questions_and_passages(tmp_path: Path) -> None:
    read_ = read(tmp_path, content())
    assert read_.passages == (PASSAGE, "Empty.")
    assert read_.articles == (0, 1)
    assert [question.id for question in read_.questions] == ["q1", "q2", "q3"]
    assert read_.questions[1].answers[0].text == "Basel"  # beyond a character outside the basic plane
    assert [question.passage for question in read_.questions] == [0, 0, 1]
    assert sum(not question.answers for question in read_.questions) == 1
    assert read(tmp_path, "\ufeff" + json.dumps(content())) == read_


def change(path: str, value: Any) -> dict[str, Any]:
    raw = content()
    *parts, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place: Any = raw
    for part in parts:
        place = place[part]
    place[last] = value
    return raw


QA = "data.0.paragraphs.0.qas.0"
REFUSALS: list[tuple[Any, str]] = [
    ("{", r"train-v2\.0\.json is not SQuAD's JSON: Invalid JSON"),
    ("", "is not SQuAD's JSON"),
    ("[1, 2]", "is not SQuAD's JSON: .*it must be"),
    ({"version": "1.1"}, "is not SQuAD's JSON: data: Field required"),
    ({"data": []}, "holds no question"),
    (
        change(f"{QA}.answers.0.answer_start", "four"),
        "question 'q1' has the answer 'Rhine' at character four",
    ),
    (
        change(f"{QA}.answers.0.answer_start", -1),
        "question 'q1' has the answer 'Rhine' at character -1, which is not",
    ),
    (change(f"{QA}.answers.0.answer_start", None), "question 'q1' has the answer 'Rhine' at character None"),
    (change(f"{QA}.answers.0.text", None), "question 'q1' has an empty answer"),
    (change(f"{QA}.question", 7), rf"{QA}\.question: Input should be a valid string"),
    (
        change(f"{QA}.answers.0.answer_start", 5),
        "question 'q1' has the answer 'Rhine' at character 5, where .* 'hine '",
    ),
    (change(f"{QA}.answers.0.answer_start", 500), "at character 500, where its passage has ''"),
    (change(f"{QA}.answers.0.text", " "), "question 'q1' has an empty answer"),
    (change(f"{QA}.id", "q2"), "question id 'q2' appears twice"),
    (change("data.0.paragraphs.0.context", None), r"context: Input should be a valid string"),
]


@pytest.mark.parametrize(("raw", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_what_is_refused(tmp_path: Path, raw: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, raw)


def test_version_1_has_an_answer_for_each(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"question 'q3' has no answer.* use the task squad_v2"):
        read(tmp_path, content(), unanswerable="refuse")


def test_bad_answers_are_left_out_on_request(tmp_path: Path) -> None:
    read_ = read(tmp_path, change(f"{QA}.answers.0.answer_start", 5), on_bad_answer="skip")
    assert read_.n_skipped == 1
    assert [question.id for question in read_.questions] == ["q2", "q3"]


def test_an_impossible_question_is_kept_whatever_its_answers(tmp_path: Path) -> None:
    given = [{"text": "", "answer_start": -1, "answer_category": "NOT_GIVEN"}]
    raw = change("data.1.paragraphs.0.qas.0.answers", given)
    assert read(tmp_path, raw) == read(tmp_path, content())
    raw["data"][1]["paragraphs"][0]["qas"][0] |= {"id": 3, "answers": None}
    assert [question.id for question in read(tmp_path, raw).questions] == ["q1", "q2", "3"]


def test_a_real_file_of_this_kind() -> None:
    questions = read_squad(shared_case("squad_not_given.json"), unanswerable="keep", on_bad_answer="refuse")
    assert sum(not question.answers for question in questions.questions) == 1
    assert "notgiven" in {question.id for question in questions.questions}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dev-v1\.1\.json cannot be read: No such file"):
        read_squad(tmp_path / "dev-v1.1.json", unanswerable="keep", on_bad_answer="refuse")
