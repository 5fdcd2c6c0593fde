"""SQuAD's JSON files, versions 1.1 and 2.0: passages, questions about them, and answers that are spans of them.

Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016); Rajpurkar et al., "Know
What You Don't Know: Unanswerable Questions for SQuAD" (2018).
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from tasks.errors import DataError


class Answer(BaseModel):
    """A span of the passage: its text and the character it starts at."""

    text: str
    answer_start: Annotated[int, Field(ge=0)]


class _Question(BaseModel):
    id: str
    question: str
    answers: list[Answer] = []
    is_impossible: bool = False


class _Paragraph(BaseModel):
    context: str
    qas: list[_Question]


class _Article(BaseModel):
    paragraphs: list[_Paragraph]


class _File(BaseModel):
    data: list[_Article]


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question.

    Attributes:
        passage: number of the passage it is asked of.
        answers: those that people gave; empty where the passage does not answer it.
    """

    id: str
    text: str
    passage: int
    answers: tuple[Answer, ...]


@dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """A file's content.

    Attributes:
        passages: their texts.
        articles: the article that each passage is of.
        n_skipped: questions left out because an answer is not in its passage.
    """

    passages: tuple[str, ...]
    articles: tuple[int, ...]
    questions: tuple[Question, ...]
    n_skipped: int = 0

    @property
    def n_unanswerable(self) -> int:
        """Questions without an answer."""
        return sum(not question.answers for question in self.questions)


def read_squad(
    path: Path, *, unanswerable: Literal["refuse", "keep"], on_bad_answer: Literal["refuse", "skip"]
) -> QuestionSet:
    """The questions of a file, in its order.

    Args:
        unanswerable: a question without an answer: refuse the file (version 1.1 has none), or keep it (2.0).
        on_bad_answer: an answer that is not in its passage where it says: refuse the file, or leave the question out.

    Raises:
        DataError: the file is missing or is not SQuAD's JSON, holds no question, an id is there twice, an answer is
            not in its passage, or has none where all must; the message names the place or the question.
    """
    content = _parse(path)
    paragraphs = [(number, part) for number, article in enumerate(content.data) for part in article.paragraphs]
    questions: list[Question] = []
    seen: set[str] = set()
    n_skipped = 0
    for passage, (_, paragraph) in enumerate(paragraphs):
        for asked in paragraph.qas:
            if asked.id in seen:
                raise DataError(f"{path}: question id {asked.id!r} is there twice; scores are kept by id")
            seen.add(asked.id)
            if not asked.answers and unanswerable == "refuse":
                raise DataError(
                    f"{path}: question {asked.id!r} has no answer, as version 2.0 allows and 1.1 does not; "
                    "use the task squad_v2"
                )
            if bad := next(_misplaced(asked, paragraph.context), None):
                if on_bad_answer == "refuse":
                    raise DataError(f"{path}: {bad}; mend the file, or set on_bad_answer: skip")
                n_skipped += 1
                continue
            questions.append(Question(id=asked.id, text=asked.question, passage=passage, answers=tuple(asked.answers)))
    if not questions:
        raise DataError(f"{path} holds no question; its 'data' must list articles with paragraphs and their 'qas'")
    return QuestionSet(
        passages=tuple(paragraph.context for _, paragraph in paragraphs),
        articles=tuple(article for article, _ in paragraphs),
        questions=tuple(questions),
        n_skipped=n_skipped,
    )


def _parse(path: Path) -> _File:
    try:
        return _File.model_validate_json(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise DataError(
            f"{path} is not SQuAD's JSON: {place + ': ' if place else ''}{first['msg']}; it must be "
            '{"data": [{"paragraphs": [{"context": …, "qas": [{"id": …, "question": …, "answers": '
            '[{"text": …, "answer_start": …}]}]}]}]}'
        ) from error


def _misplaced(asked: _Question, passage: str) -> Iterator[str]:
    """What is wrong with each bad answer."""
    for answer in asked.answers:
        found = passage[answer.answer_start : answer.answer_start + len(answer.text)]
        if not answer.text.strip():
            yield f"question {asked.id!r} has an empty answer"
        elif found != answer.text:
            yield (
                f"question {asked.id!r} has the answer {answer.text!r} at character {answer.answer_start}, where its "
                f"passage has {found!r}"
            )
