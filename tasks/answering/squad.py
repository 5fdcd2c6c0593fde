"""SQuAD 1.1 and 2.0: its JSON files, the questions held out, exact match and F1, and the threshold for "no answer".

The scores are those of the official evaluations. Both compare answers without case, punctuation, articles and
repeated blanks; F1 is that of the words the two share, each as often as both have it. A question with several answers
counts the best. The versions differ where such a bare answer is empty: 1.1 gives it no F1; 2.0 drops it from the true
answers, and takes "no answer" as the only right one where none remains. Tests check them against the official scripts.

Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016); Rajpurkar et al., "Know
What You Don't Know: Unanswerable Questions for SQuAD" (2018).
"""

from __future__ import annotations

import codecs
import json
import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from tasks.data.find import Fail, find_or_fetch, load_from_hub
from tasks.data.hold_out import Rows, hold_out_groups
from tasks.errors import DataError


@dataclass(frozen=True)
class Answer:
    """A span of the passage: its text and the character it starts at."""

    text: str
    answer_start: int


class _Answer(BaseModel):
    """Not checked by pydantic: errors of an answer name its question's id."""

    text: Any = None
    answer_start: Any = None


class _Question(BaseModel):
    id: str | int
    question: str
    answers: list[_Answer] | None = None
    is_impossible: bool | None = False


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


def read_squad(
    path: Path, *, unanswerable: Literal["refuse", "keep"], on_bad_answer: Literal["refuse", "skip"]
) -> QuestionSet:
    """The questions of a file, in its order.

    Args:
        unanswerable: a question without an answer: refuse the file (version 1.1 has none), or keep it (2.0).
        on_bad_answer: an answer that is empty or not in its passage: refuse the file, or leave the question out. The
            answers of a question with `is_impossible` are not looked at: it has none.

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
            name = str(asked.id)
            if name in seen:
                raise DataError(f"{path}: question id {name!r} appears twice; scores are stored by id")
            seen.add(name)
            given = [] if asked.is_impossible else asked.answers or []
            if not given and unanswerable == "refuse":
                raise DataError(
                    f"{path}: question {name!r} has no answer, as version 2.0 allows and 1.1 does not; "
                    "use the task squad_v2"
                )
            answers = [_check_answer(answer, paragraph.context) for answer in given]
            if bad := next((answer for answer in answers if isinstance(answer, str)), None):
                if on_bad_answer == "refuse":
                    raise DataError(f"{path}: question {name!r} {bad}; correct the file, or set on_bad_answer: skip")
                n_skipped += 1
                continue
            kept = tuple(answer for answer in answers if isinstance(answer, Answer))
            questions.append(Question(id=name, text=asked.question, passage=passage, answers=kept))
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


def _check_answer(answer: _Answer, passage: str) -> Answer | str:
    """The answer, or what is wrong with it."""
    text, start = answer.text, answer.answer_start
    if not isinstance(text, str) or not text.strip():
        return "has an empty answer"
    if not isinstance(start, int) or start < 0:
        return f"has the answer {text!r} at character {start}, which is not in its passage"
    found = passage[start : start + len(text)]
    if found != text:
        return f"has the answer {text!r} at character {start}, where its passage has {found!r}"
    return Answer(text, start)


FORMAT = 1  # of the fetched files; raise it when their layout changes
VERSIONS: Mapping[str, str] = {"squad_v1": "v1.1", "squad_v2": "v2.0"}
HUB_NAMES: Mapping[str, str] = {"squad_v1": "rajpurkar/squad", "squad_v2": "rajpurkar/squad_v2"}


def squad_files(task: str, *, data_dir: Path | None, inner: str | None) -> Mapping[str, Path]:
    """The files "train" and "test" (the development set) of a version, found under their official names or fetched.

    Args:
        inner: a folder of the data folder to look in; None: the data folder, and its folders squad and `task`.

    Raises:
        DataError: not found and not fetched; the message names the folder and the files expected.
    """
    names = {"train": f"train-{VERSIONS[task]}.json", "test": f"dev-{VERSIONS[task]}.json"}
    return find_or_fetch(
        task,
        data_dir=data_dir,
        inner=inner,
        folders=[".", "squad", "SQuAD", task],
        layouts=[names],
        advice=f"Put {' and '.join(names.values())} there",
        fetch=partial(_fetch, task=task, names=names),
        fetched=names,
        version=FORMAT,
    )


def _fetch(folder: Path, fail: Fail, *, task: str, names: Mapping[str, str]) -> None:
    """Write the hub's splits as SQuAD's own JSON, so that later runs need neither the network nor `datasets`."""
    loaded = load_from_hub(HUB_NAMES[task], fail=fail)
    for split, hub_split in {"train": "train", "test": "validation"}.items():
        content = {"version": VERSIONS[task], "data": _articles(loaded[hub_split])}
        (folder / names[split]).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _articles(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of questions, in order, as articles of paragraphs of questions."""
    articles: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        questions = articles.setdefault(row["title"], {}).setdefault(row["context"], [])
        answers = row["answers"]
        questions.append(
            {
                "id": row["id"],
                "question": row["question"],
                "answers": [
                    {"text": text, "answer_start": start}
                    for text, start in zip(answers["text"], answers["answer_start"], strict=True)
                ],
            }
        )
    return [
        {"title": title, "paragraphs": [{"context": context, "qas": asked} for context, asked in paragraphs.items()]}
        for title, paragraphs in articles.items()
    ]


MIN_ARTICLES = 10  # of fewer, passages are held out instead


def hold_out_questions(questions: QuestionSet, *, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """(kept, held out): numbers of questions, rising; about `fraction` of them are held out.

    Whole articles are held out, so that none of their passages is trained on; of few articles, whole passages.

    Raises:
        DataError: all questions are of one passage.
    """
    passages = np.array([question.passage for question in questions.questions], dtype=np.int64)
    articles = np.array(questions.articles, dtype=np.int64)[passages]
    groups = articles if len(np.unique(articles)) >= MIN_ARTICLES else passages
    if len(np.unique(groups)) < 2:
        raise DataError("all questions are of one passage, so none can be held out for validation; add passages")
    return hold_out_groups(groups, fraction=fraction, seed=seed)


_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True)
class Score:
    """Of one answer, both in [0, 1]."""

    exact_match: float
    f1: float


def bare(text: str) -> str:
    """An answer as it is compared: lower case, without punctuation (ASCII's) and articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def score_v1(answer: str, true: Sequence[str]) -> Score:
    """Version 1.1's score of an answer against the true ones, of which there is at least one."""
    given = bare(answer)
    wanted = [bare(text) for text in true]
    return Score(float(given in wanted), max(_overlap(given.split(), text.split()) for text in wanted))


def score_v2(answer: str, true: Sequence[str]) -> Score:
    """Version 2.0's: `true` may be empty, and the empty answer says that there is none."""
    given = bare(answer)
    wanted = [text for text in map(bare, true) if text] or [""]
    if not given or not wanted[0]:
        agree = float(given in wanted)
        return Score(agree, agree)
    return Score(float(given in wanted), max(_overlap(given.split(), text.split()) for text in wanted))


def _overlap(given: list[str], wanted: list[str]) -> float:
    """F1 of the words that two answers share; 0 where they share none."""
    shared = (Counter(given) & Counter(wanted)).total()
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


@dataclass(frozen=True)
class Threshold:
    """Questions whose margin is above `margin` are taken as unanswerable; `score` is the mean that results."""

    margin: float
    score: float


def best_threshold(
    margins: NDArray[np.float64], scores: NDArray[np.float64], answerable: NDArray[np.bool_]
) -> Threshold:
    """The margin at which answering "none" makes the mean score highest; of equal ones the lowest.

    Args:
        margins: (n,), how much better "none" looks than the best span.
        scores: (n,), the score of the best span against the true answers.
        answerable: (n,), whether there is a true answer.

    Returns:
        A threshold halfway between two margins, or infinite at either end.
    """
    order = np.argsort(margins, kind="stable")
    gains = np.where(answerable, scores, scores - 1.0)[order]  # of answering, over saying "none"
    totals = (~answerable).sum() + np.concatenate([[0.0], np.cumsum(gains)])
    ranked = margins[order]
    # Equal margins fall on one side together.
    cuts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1], [True]]))
    n_answered = int(cuts[np.argmax(totals[cuts])])
    if n_answered == 0:
        margin = -math.inf
    elif n_answered == len(ranked):
        margin = math.inf
    else:
        margin = float(ranked[n_answered - 1] / 2 + ranked[n_answered] / 2)
    return Threshold(margin=margin, score=float(totals[n_answered] / len(margins)))
