# ruff: noqa: T201 - a command that prints its table
"""`python -m tests.chaos`: the kill matrix in full, and its table. Takes hours at 20 rounds; see `--help`."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tests.chaos.campaign import Database, Tally, Target, rounds, run
from tests.chaos.postgres import programs

HEADER = (
    "| target | database | rounds | studies | runs | lost | repeated | stuck | curve faults | resumed | "
    "not at last checkpoint | values changed | minutes |\n" + "|---|---" + "|--:" * 11 + "|"
)


def row(tally: Tally) -> str:
    """The tally as a row of the table."""
    numbers = (
        tally.n_rounds,
        tally.n_studies,
        tally.n_runs,
        tally.n_lost,
        tally.n_repeated,
        tally.n_stuck,
        tally.n_curves,
        tally.n_resumed,
        tally.n_wrong_resumes,
        tally.n_changed,
        f"{tally.wall_s / 60:.1f}",
    )
    return (
        f"| {', '.join(sorted(tally.targets))} | {tally.database} | "
        + " | ".join(str(number) for number in numbers)
        + " |"
    )


def cells(targets: list[Target], databases: list[Database]) -> list[tuple[Target, Database]]:
    """The campaigns: an SQLite file has no server to stop."""
    on_servers = (Target.DATABASE_5S, Target.DATABASE_60S)
    return [
        (target, database)
        for target in targets
        for database in databases
        if database is Database.POSTGRESQL or target not in on_servers
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="kills in each campaign (default: 20)")
    parser.add_argument("--target", action="append", choices=[t.name.lower() for t in Target], help="default: all")
    parser.add_argument("--database", action="append", choices=[d.value for d in Database], help="default: both")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="of the moments (default: any)")
    parser.add_argument("--folder", type=Path, help="keep homes and logs here (default: nothing is kept)")
    options = parser.parse_args()
    targets = [Target[name.upper()] for name in options.target] if options.target else list(Target)
    databases = [Database(name) for name in options.database] if options.database else list(Database)
    if Database.POSTGRESQL in databases and programs() is None:
        print("PostgreSQL's server programs (initdb, pg_ctl) were not found: SQLite only.", file=sys.stderr)
        databases.remove(Database.POSTGRESQL)
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}\n\n{HEADER}", flush=True)
    failed = False
    for target, database in cells(targets, databases):
        if target.lacks is not None:
            print(f"{target}: left out, {target.lacks}", file=sys.stderr, flush=True)
            continue
        tally = run(rounds(target, options.rounds), database, seed=options.seed, folder=options.folder)
        failed |= bool(tally.faults)
        print(row(tally), flush=True)
        for fault in tally.faults:
            print(f"  {fault}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
