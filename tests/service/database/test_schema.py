from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text

from service.database import SqlStore, make_engine, prepare
from service.database.engine import make_single_engine, sqlite_path
from service.database.errors import DatabaseFileError, DatabaseUnavailableError, DatabaseVersionError
from service.database.models import Base
from service.database.schema import (
    TABLE_PREFIX,
    VERSION_TABLE,
    _config,
    current_revision,
    downgrade,
    head_revision,
    upgrade,
)
from tasks.engine.protocol import Cost
from tests.machine import PATIENCE_S
from tests.service.database.fill import FACTS, complete, curve, definition, leased, run

OURS = {
    "admeta_studies",
    "admeta_searches",
    "admeta_runs",
    "admeta_attempts",
    "admeta_points",
    "admeta_events",
    "admeta_tokens",
    "admeta_answers",
    "admeta_card_facts",
    VERSION_TABLE,
}


def test_prepare_makes_all_tables_and_may_be_repeated(empty_url: str) -> None:
    for _ in range(2):
        prepare(empty_url)
    engine = make_engine(empty_url)
    tables = set(inspect(engine).get_table_names())
    assert {name for name in tables if name.startswith(TABLE_PREFIX)} == OURS
    assert {"studies", "trials", "trial_params", "trial_values", "alembic_version", "version_info"} <= tables
    assert current_revision(engine) == head_revision()
    SqlStore(engine).optuna_storage()
    engine.dispose()


def test_models_and_migrations_agree(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "include_name": lambda name, kind, _: kind != "table" or name.startswith(TABLE_PREFIX),
                "compare_type": True,
            },
        )
        assert compare_metadata(context, Base.metadata) == []


def test_down_and_up_again_on_a_filled_database(store: SqlStore, engine: Engine) -> None:
    """Every revision can be taken back and made again; upgrading a filled database keeps its rows."""
    lease, (search, _) = leased(store, definition())
    record = run(store, lease, search, 0, complete(0.5), points=curve(0.1, 0.2))
    engine.dispose()
    single = make_single_engine(engine.url)
    upgrade(single)
    assert store.points(record.id) == curve(0.1, 0.2)
    engine.dispose()
    downgrade(single, "base")
    tables = set(inspect(single).get_table_names())
    assert not tables & (OURS - {VERSION_TABLE})
    assert "trials" in tables  # Optuna's are Optuna's
    upgrade(single)
    assert set(inspect(single).get_table_names()) >= OURS
    leased(store, definition())


def test_no_revision_loses_a_row_of_a_filled_database(store: SqlStore, engine: Engine) -> None:
    """Back a revision at a time and forward again: what both sides of a step can hold is the same on both."""
    for name in ("first", "second"):
        lease, searches = leased(store, definition(name))
        for number, search in enumerate(searches):
            run(store, lease, search, number, complete(0.5, test_accuracy=0.4), points=curve(0.1, 0.2, 0.3))
            run(store, lease, search, number + 1, None, points=curve(0.1))
    origin = {"study": "first", "optimizer": "admetar", "trial": 0}
    leased(store, definition("tuned", task={"name": "digits", "init_from": origin}))
    for card in ("H200", "L4"):
        store.keep_card_facts(lease, "0" * 64, card, FACTS)
    optuna.create_study(study_name="first/admetar", storage=store.optuna_storage()).ask().report(0.5, 1)
    engine.dispose()
    single = make_single_engine(engine.url)
    newest = _content(single)
    assert min(len(newest[table]) for table in OURS - {"admeta_tokens", "admeta_answers", VERSION_TABLE}) > 1
    assert newest["trials"]
    steps = [script.revision for script in ScriptDirectory.from_config(_config(None)).walk_revisions()][1:]
    assert steps
    before = newest
    for revision in steps:
        downgrade(single, revision)
        before = _kept(before, _content(single))
    for revision in [*reversed(steps[:-1]), "head"]:
        upgrade(single, revision)
        before = _kept(before, _content(single))
    assert _content(single)["admeta_points"] == newest["admeta_points"]
    assert _content(single)["admeta_runs"] == newest["admeta_runs"]
    assert _content(single)["admeta_studies"] == newest["admeta_studies"], "what was added follows from what there was"


def _content(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables, each in one order."""
    tables = inspect(engine).get_table_names()
    with engine.connect() as connection:
        content = {
            table: [dict(row) for row in connection.execute(text(f'SELECT * FROM "{table}"')).mappings()]
            for table in tables
            if table != VERSION_TABLE
        }
    return {table: sorted(rows, key=str) for table, rows in content.items()} | {VERSION_TABLE: []}


def test_earlier_runs_get_the_cost_of_their_curves(engine: Engine) -> None:
    lease, (search, _) = leased(SqlStore(engine), definition())
    points = [replace(point, cost=Cost(eval_s=0.5, data_s=0.25)) for point in curve(0.1, 0.2)]
    run(SqlStore(engine), lease, search, 0, complete(0.2), points=points)
    run(SqlStore(engine), lease, search, 1, complete(0.2))
    single = make_single_engine(engine.url)
    downgrade(single, "0005")
    upgrade(single)
    costs = [(one.cost.eval_s, one.cost.data_s) for one in SqlStore(engine).runs(lease.study_id)]
    assert costs == [(1.0, 0.5), (0.0, 0.0)]
    single.dispose()


def _kept(
    before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """What is there after a step, if it lost nothing that it could keep."""
    for table in before.keys() & after.keys():
        columns = set(before[table][0]) & set(after[table][0]) if before[table] and after[table] else set()
        old, new = ([{c: row[c] for c in columns} for row in rows] for rows in (before[table], after[table]))
        assert len(before[table]) == len(after[table]), table
        assert sorted(map(_sorted_text, old)) == sorted(map(_sorted_text, new)), table
    return after


def _sorted_text(row: dict[str, Any]) -> str:
    return str(sorted(row.items()))


def test_newer_database_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(DatabaseVersionError, match="revision 9999; the newest that this version knows"):
        prepare(engine.url)
    assert current_revision(engine) == "9999"


def test_newer_optuna_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'v9.0.0.a'"))
    with pytest.raises(DatabaseVersionError, match="Optuna's tables are at version"):
        prepare(engine.url)


def test_tables_of_an_older_optuna_are_upgraded(engine: Engine) -> None:
    """The last revision of Optuna's only changes indexes and column types: stamping it back is enough."""
    with engine.begin() as connection:
        newest = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        connection.execute(text("UPDATE alembic_version SET version_num = 'v3.0.0.d'"))
    prepare(engine.url)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == newest


def test_unprepared_database_is_named(empty_url: str) -> None:
    engine = make_engine(empty_url)
    if (path := sqlite_path(engine.url)) is not None:
        with pytest.raises(DatabaseFileError, match="does not exist: it was deleted, or never created"):
            current_revision(engine)
        assert not path.exists()
        path.touch()
    assert current_revision(engine) is None
    engine.dispose()


def test_two_processes_prepare_an_empty_database(empty_url: str) -> None:
    code = "import sys; from service.database import prepare; print(flush=True); input(); prepare(sys.argv[1])"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, empty_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # has imported what it needs
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=PATIENCE_S)
    assert [process.returncode for process in processes] == [0, 0]
    engine = make_engine(empty_url)
    assert current_revision(engine) == head_revision()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM version_info")).scalar() == 1
    engine.dispose()


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database" * 100)
    with pytest.raises(DatabaseUnavailableError, match="not a database"):
        prepare(f"sqlite:///{file}")
    with pytest.raises(DatabaseUnavailableError, match=r"notes\.txt"):
        prepare(f"sqlite:///{file}/below/a.sqlite3")


@pytest.mark.postgres
def test_database_that_does_not_exist_is_named(server: Engine) -> None:
    url = server.url.set(database="admeta_nowhere", password="s3cret")
    with pytest.raises(DatabaseUnavailableError, match='"admeta_nowhere" does not exist') as error:
        prepare(url)
    assert "s3cret" not in str(error.value)
