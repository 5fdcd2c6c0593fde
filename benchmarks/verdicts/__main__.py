"""The command `python -m benchmarks.verdicts`: prints the tables that it names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import benchmarks.verdicts
from benchmarks.verdicts.across import algoperf, ranks
from benchmarks.verdicts.looks import adaptive, extended
from benchmarks.verdicts.searches import aa, bands, resampled
from benchmarks.verdicts.seeds import family, gpt

PARTS: Mapping[str, Callable[[Path], None]] = {
    "gpt": gpt, "family": family, "aa": aa, "resampled": resampled, "adaptive": adaptive, "extended": extended,
    "bands": bands, "algoperf": algoperf, "ranks": ranks,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.verdicts",
        description=benchmarks.verdicts.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the public results")
    arguments = parser.parse_args()
    for name in arguments.parts or PARTS:
        try:
            PARTS[name](arguments.data)
        except FileNotFoundError as error:
            print(f"\n{name}: left out, {error.filename} is missing\n")


if __name__ == "__main__":
    main()
