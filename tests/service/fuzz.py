"""Schemathesis against the live service: thousands of requests made from its own description, good ones and bad ones.

    python -m tests.service.fuzz [--examples 200] [--seed 1]

Starts the service behind a real socket, with access tokens and a filled database, and lets Schemathesis's command line
at every address but the streams of events, which have no end. It checks that there is no 5xx, no status and no header
that the description does not name, that answers fit their schemas, that what is deleted is gone, and that bad requests
are refused. Not that every request which fits its schema is accepted: names come from registries, and low < high is
no schema. Exits 0 where it found nothing; its summary and the number of requests are printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from search.states import Scope
from service.database import make_engine, prepare, tokens
from service.settings import load
from tests.service.dashboard.fill import fill
from tests.service.fakes import live

LEAST_CASES = 5000


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200, help="of each operation in each phase, at most")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = load({}, home=Path(folder), port=0, require_token=True)
        prepare(settings.database_url)
        engine = make_engine(settings.database_url)
        fill(engine, Path(settings.storage))
        token = tokens.create_token(engine, name="fuzz", scope=Scope.ADMIN).token
        engine.dispose()
        report = Path(folder) / "report.ndjson"
        with live(settings) as url:
            code = subprocess.run(_command(url, token, report, options), check=False).returncode
        n = _n_cases(report)
    sys.stdout.write(f"\n{n} requests, exit code {code}\n")
    return code or int(options.examples >= 200 and n < LEAST_CASES)


def _command(url: str, token: str, report: Path, options: argparse.Namespace) -> list[str]:
    return [
        str(Path(sys.executable).with_name("schemathesis")),
        *("run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {token}"),
        *("--exclude-path-regex", "/events$", "--exclude-checks", "positive_data_acceptance"),
        *("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", str(options.examples)),
        *(
            "--seed",
            str(options.seed),
            "--request-timeout",
            "120",
            "--suppress-health-check",
            "all",
            "--no-color",
            "--warnings",
            "off",
        ),
        *("--report-ndjson-path", str(report), "--continue-on-failure"),
    ]


def _n_cases(report: Path) -> int:
    """How many requests the report tells of."""
    n = 0
    for line in report.read_text().splitlines():
        event = json.loads(line)
        recorder = event.get("ScenarioFinished", {}).get("recorder", {})
        n += len(recorder.get("interactions", {}))
    return n


if __name__ == "__main__":
    sys.exit(main())
