"""An answer is there if and only if what it tells of is, on both databases."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session

from service.database.idempotency import Answer, AnsweredBeforeError, IdempotencyKey
from service.database.queries import list_studies
from service.database.studies import create_study
from tests.service.database.fill import definition


def _key(key: str = "key") -> IdempotencyKey:
    return IdempotencyKey(caller="", key=key, request_sha256="of the request")


def test_of_many_at_once_one_is_carried_out(engine: Engine) -> None:
    def submit(_: int) -> Answer | None:
        try:
            create_study(engine, definition(), key=_key())
        except AnsweredBeforeError as error:
            return error.answer
        return None

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(submit, range(6)))
    assert answers.count(None) == 1
    (study,) = list_studies(engine).items
    assert {(a.status, a.location, json.loads(a.body)["id"]) for a in answers if a is not None} == {
        (201, f"/v1/studies/{study.id}", study.id)
    }


def test_neither_study_nor_answer_after_a_crash(engine: Engine) -> None:
    class Crash(BaseException):
        pass

    def crash(session: Session) -> None:
        session.flush()
        raise Crash

    event.listen(Session, "before_commit", crash)
    try:
        with pytest.raises(Crash):
            create_study(engine, definition(), key=_key())
    finally:
        event.remove(Session, "before_commit", crash)
    assert list_studies(engine).items == []
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM admeta_answers")).scalar() == 0
    assert create_study(engine, definition(), key=_key())[1]
