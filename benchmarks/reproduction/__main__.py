"""The commands of `benchmarks.reproduction`: run, report, details, estimate, power, text, weights, smoke."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import benchmarks.reproduction
from admeta.client.models import StudyView
from benchmarks.reproduction import definitions, estimate, ledger, material, packing
from benchmarks.reproduction.facts import gather
from benchmarks.reproduction.report import write_details, write_report
from benchmarks.reproduction.tables import standing
from benchmarks.reproduction.work import IsOver, work


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.reproduction",
        description=benchmarks.reproduction.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="work on the studies for some minutes")
    run.add_argument("--home", type=Path, required=True)
    run.add_argument("--data", type=Path, help="holds glue/, conll2003/, text/, …; default: HOME/data")
    run.add_argument("--minutes", type=float, required=True, help="until runs are paused; stopping takes up to 2 more")
    run.add_argument("--studies", nargs="+", help=f"default: all, {' '.join(definitions.names())}")
    run.add_argument("--pack", type=Path, metavar="OUT", help="write OUT.00, OUT.01, … at the end")
    run.add_argument("--commit", help="of the source, where it is no checkout; for the record")
    run.add_argument("--tiny", action="store_true", help="two trials of each optimizer, on processors: for trying")
    report = commands.add_parser("report", help="write the report from the home's database")
    report.add_argument("--home", type=Path, required=True)
    report.add_argument("--out", type=Path, default=Path("docs/reproduction.md"))
    details = commands.add_parser(
        "details", help="write each study's spaces, trials and pairs from the home's database"
    )
    details.add_argument("--home", type=Path, required=True)
    details.add_argument("--out", type=Path, required=True)
    for command in (run, report, details):
        command.add_argument("--unpack", type=Path, nargs="+", metavar="PIECE", help="begin with what --pack wrote")
    estimates = commands.add_parser("estimate", help="print the runs, samples and card seconds that studies will take")
    estimates.add_argument("--studies", nargs="+", help="default: all")
    commands.add_parser("power", help="print what confirmation until decided can decide, by simulation; ten minutes")
    text = commands.add_parser("text", help="write the GPT's text from the data folder's glue/ and conll2003/")
    text.add_argument("--data", type=Path, required=True)
    weights = commands.add_parser("weights", help="copy the installed MiniLM with weights of half the size, to carry")
    weights.add_argument("--out", type=Path, required=True, help="a folder for the other machine's path")
    smoke = commands.add_parser("smoke", help="all of it in miniature: two homes, pack, unpack, report")
    smoke.add_argument("--home", type=Path, required=True, help="a new folder")
    smoke.add_argument("--studies", nargs="+", help="default: all")
    options = parser.parse_args()
    match options.command:
        case "run":
            _run(options)
        case "report" | "details":
            if options.unpack:
                packing.unpack(options.unpack, options.home)
            (write_report if options.command == "report" else write_details)(options.home, options.out)
        case "estimate":
            print(estimate.table(definitions.load(options.studies)))
        case "power":
            print(estimate.power([0.001, 0.002, 0.003, 0.005, 0.01, 0.02]))
        case "text":
            material.write_text(options.data)
        case "weights":
            material.write_weights(options.out)
        case _:
            return run_smoke(options.home, options.studies)
    return 0


def _run(options: argparse.Namespace) -> None:
    begin = time.monotonic()
    if options.unpack:
        packing.unpack(options.unpack, options.home)
    studies = definitions.load(options.studies)
    if options.tiny:
        studies = [definitions.tiny(study) for study in studies]
    try:
        is_over = _after(60 * options.minutes, begin=begin)
        work(options.home, studies, data=options.data, is_over=is_over, commit=options.commit)
    finally:
        if options.pack is not None:
            packing.pack(options.home, options.pack)
    print("\n".join(standing(gather(options.home))))


def _after(seconds: float, *, begin: float) -> IsOver:
    return lambda _: time.monotonic() - begin >= seconds


def run_smoke(home: Path, names: Sequence[str] | None) -> int:
    """Tiny studies begun in one home and finished in another; returns the exit code."""
    studies = [definitions.tiny(study, model="tiny") for study in definitions.load(names)]
    first, second, pieces = home / "first", home / "second", home / "packed"
    data = material.make_up(home / "data")
    work(first, studies, data=data, is_over=_one_trial_has_ended)
    before = ledger.read(first)
    packing.unpack(packing.pack(first, pieces), second)
    carried = ledger.read(second)
    views = work(second, studies, data=data, is_over=lambda _: False)
    after = ledger.read(second)
    faults = ledger.faults(before, carried) + ledger.faults(before, after)
    faults += [f"study {view.name} is {view.state}: {view.reason}" for view in views if view.state != "COMPLETED"]
    faults += _miscounted(views, after)
    write_report(second, home / "reproduction.md")
    n_finished = sum(entry.finished for entry in before.values())
    n_going_on = sum(not entry.finished and entry.n_attempts > 0 for entry in before.values())
    n_resumed = sum(entry.resumed_from > 0 for entry in after.values())
    print(
        f"{n_finished} runs finished and {n_going_on} begun in the first home; {len(after)} finished in all, "
        f"{n_resumed} of them from a checkpoint that travelled"
    )
    print("\n".join(faults) or "none lost, none repeated")
    return 1 if faults else 0


def _one_trial_has_ended(views: Sequence[StudyView]) -> bool:
    return any(search.n_complete for view in views for search in view.searches)


def _miscounted(views: Sequence[StudyView], entries: dict[ledger.Key, ledger.Entry]) -> list[str]:
    """Every trial and the first look's confirm runs are there; how many more a decision takes is not known before."""
    n_trials = sum(search.n_trials for view in views for search in view.searches)
    n_most = n_trials + sum(search.n_confirm_runs for view in views for search in view.searches)
    n_search = sum(stage == "search" for _, _, _, stage, _ in entries)
    finished = sum(entry.finished for entry in entries.values())
    right = n_search == n_trials and finished == len(entries) <= n_most
    told = (
        f"{n_trials} trials and at most {n_most} runs were planned; {n_search} trials and {len(entries)} runs are there"
    )
    return [] if right else [f"{told}, {finished} of them ended"]


if __name__ == "__main__":
    raise SystemExit(main())
