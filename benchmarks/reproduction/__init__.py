"""The studies of studies/reproduction, run through the service and reported in docs/reproduction.md.

    python -m benchmarks.reproduction run --home DIR --data DATA --minutes M [--studies a b …]
                                       [--unpack PIECES …] [--pack OUT]
    python -m benchmarks.reproduction report --home DIR --out docs/reproduction.md [--unpack PIECES …]
    python -m benchmarks.reproduction estimate
    python -m benchmarks.reproduction text --data DATA
    python -m benchmarks.reproduction weights --out SITE
    python -m benchmarks.reproduction smoke --home DIR

`run` starts the service as a process, submits by REST what the home's database does not have, goes on with what is
paused, and after M minutes pauses and stops; the next call on the same home, also on another machine with what `--pack`
wrote, goes on from there. `report` writes the whole report from the database. `estimate`
prints what the studies will take of a card, `text` writes what the GPT reads, `weights` writes a MiniLM of half the
size, and `smoke` does all of it in miniature, on made-up data.
"""
