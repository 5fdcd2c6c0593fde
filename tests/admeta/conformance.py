"""Runs the optimizers' tests and counts them by optimizer and implementation.

python -m tests.admeta.conformance [arguments of pytest, -n 8 for example]
"""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest

from tests.admeta.cases import OURS

IMPLEMENTATIONS = ("single", "foreach", "fused", "differentiable", "compared or all")
_OPTIMIZER = re.compile("|".join(OURS), re.IGNORECASE)
_IMPLEMENTATION = re.compile("differentiable|single|foreach|fused")
_FOREACH_FALSE = re.compile("'foreach': False")  # as a test's id spells the flags of the single-tensor implementation


class Counts:
    """A pytest plugin: outcomes by optimizer and implementation, as tests' ids tell them."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            for item in session.items:
                self._count(item.nodeid, "passed")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or (report.when == "setup" and not report.passed):
            self._count(report.nodeid, report.outcome)

    def _count(self, nodeid: str, outcome: str) -> None:
        name = nodeid.partition("[")[2]
        optimizer = _OPTIMIZER.search(name)
        if optimizer is None:
            return
        ran = _IMPLEMENTATION.search(_FOREACH_FALSE.sub("single", name))
        column = (ran[0] if ran else IMPLEMENTATIONS[-1]) if outcome == "passed" else outcome
        self._counts[optimizer[0].lower(), column] += 1

    def table(self) -> str:
        """Markdown: passed by implementation, then what was skipped or failed."""
        columns = (*IMPLEMENTATIONS, "skipped", "failed")
        lines = [f"| passed | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for optimizer in OURS:
            cells = [self._counts[optimizer, column] for column in columns]
            lines.append(f"| {optimizer} | {' | '.join(map(str, cells))} |")
        return "\n".join(lines)


def main() -> int:
    counts = Counts()
    status = pytest.main(["tests/admeta", "-q", *sys.argv[1:]], plugins=[counts])
    print(counts.table())  # noqa: T201 - the program's result
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
