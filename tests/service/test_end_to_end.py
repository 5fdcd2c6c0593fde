"""The whole product as a user has it: `admeta serve` in its own process, a study over HTTP, results by REST."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import optuna
import pytest
import yaml

from admeta.cli.app import run as run_command
from admeta.client import Client
from admeta.client.models import StudyView
from service.database.engine import make_engine
from service.database.optuna_storage import optuna_storage
from service.database.retry import REQUEST
from service.logs import driver_log
from tests.machine import PATIENCE_S, wait_until
from tests.service.fakes import definition

STUDIES = Path(__file__).parents[2] / "studies"
pytestmark = [pytest.mark.ray, pytest.mark.slow]


class Served:
    """`admeta serve` on a free port."""

    def __init__(self, home: Path, *options: str, cwd: Path | None = None) -> None:
        self.home = home
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environ.pop("RAY_worker_niceness", None)  # which the tests' own Rays have
        self.process = subprocess.Popen(
            [sys.executable, "-m", "admeta.cli", "serve", "--home", str(home), "--port", "0", *options],
            env=environ, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.url = self._address()

    def _address(self) -> str:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if found:
                return found.group()
        raise AssertionError("the service did not start:\n" + "".join(lines))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    service = Served(tmp_path_factory.mktemp("served"))
    yield service
    if service.process.poll() is None:
        service.stop()


def _descendants(pid: int) -> set[int]:
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return {int(child) for child in children}.union(*(_descendants(int(child)) for child in children))


def _command(pid: int) -> str:
    """The process's command line; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _niceness(pid: int) -> int | None:
    """The process's niceness; None when it has ended."""
    try:
        return os.getpriority(os.PRIO_PROCESS, pid)
    except ProcessLookupError:
        return None


def _environment(pid: int) -> bytes:
    """The variables that the process was started with; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _strictly(response: httpx.Response) -> object:
    return json.loads(response.content, parse_constant=lambda token: pytest.fail(f"{token} in an answer"))


def test_from_submit_to_best(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    started_with: set[bytes] = set()
    niceness: set[int | None] = set()

    def look(_: StudyView) -> None:
        started = _descendants(served.process.pid)
        niceness.update(_niceness(pid) for pid in started)
        # The command last: a child that a worker starts has its name until it is another program, with its variables.
        found = [(_environment(pid), _command(pid)) for pid in started]
        started_with.update(environment for environment, command in found if "Worker" in command)

    with Client(served.url) as client:
        submission = client.submit(definition("e2e", budget={"trials_per_optimizer": 6}, resources={"gpus": 0}))
        study = submission.wait(timeout_s=PATIENCE_S, on_update=look)
        assert study.state == "COMPLETED", study.reason
        assert [s.stage for s in study.searches] == ["done", "done"]
        for search in study.searches:
            assert search.n_complete + search.n_pruned + search.n_failed == 6
            assert search.n_confirm_finished == search.n_confirm_runs == 3
            assert search.best_params is not None

        told = [event.data["reason"] for event in client.events(study.id) if event.kind == "study.state"]
        first_epoch = "its first runs read the data, build the model and train their first epoch"
        phases = ["its driver starts", "starts its first workers", first_epoch]
        assert [text for text in told if text in phases] == phases, told

        trials = list(client.trials("e2e"))
        assert len(trials) == 12
        assert {trial.state for trial in trials} <= {"COMPLETE", "PRUNED", "FAIL"}
        curve = client.trial("e2e", trials[0].label, trials[0].number).curve
        assert curve
        assert [point.epoch for point in curve] == sorted({point.epoch for point in curve})

        run = next(trial.runs[0] for trial in trials if trial.state == "COMPLETE")
        log = httpx.get(f"{served.url}/v1/runs/{run.id}/logs", timeout=PATIENCE_S)
        assert re.search(r" attempt 1, seed \d+: node .*\n.* epoch 1, step .*(.*\n)+.* complete: ", log.text), log.text

        lines = driver_log(served.home, study.id).read_text()
        assert re.search(rf"admetar trial 0 \(search, seed \d+\): attempt 1 starts \[study={study.id} ", lines), lines

        comparison = client.comparison("e2e")
        assert comparison.complete
        assert [row.rank for row in comparison.rows] == [1, 2]
        assert all(row.validation.n == 3 for row in comparison.rows)
        means = [row.validation.mean for row in comparison.rows]
        assert means == sorted(means, key=lambda mean: -(mean or 0))

        # With Ray's own priority a study beside busy programs would take ten times as long.
        assert niceness - {None} == {os.getpriority(os.PRIO_PROCESS, 0)}
        # Tune's own variables would have Ray start new processes, where others wait that have imported all.
        variables = b"".join(started_with)
        assert b"RAY_" in variables
        assert b"PL_DISABLE_FORK" not in variables
        assert b"RAY_CHDIR_TO_TRIAL_DIR" not in variables

        for row in comparison.rows:
            best = client.best(task="synthetic", optimizer=row.optimizer)
            assert best.settings == row.settings
            assert best.evidence == "confirmed"
    for path in ("", "/trials", "/comparison"):
        _strictly(httpx.get(f"{served.url}/v1/studies/e2e{path}", timeout=PATIENCE_S))
    for command in (["show", "e2e"], ["trials", "e2e", "--order", "best"], ["compare", "e2e"]):
        assert run_command([*command, "--url", served.url]) == 0
        assert "admetar" in capsys.readouterr().out


def test_each_trial_trains_with_its_own_recipe(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    study = definition(
        "recipe",
        task={"name": "digits", "model": "linear", "epochs": 2},
        recipe={"batch_size": {"type": "categorical", "choices": [32, 128]}},
        optimizers=[{"name": "adamw", "space": {}}],
        sampler={"name": "grid"},
        pruner={"name": "none"},
        confirm={"top_k": 1, "seeds": [0]},
        resources={"gpus": 0},
    )
    with Client(served.url) as client:
        assert client.submit(study).wait(timeout_s=PATIENCE_S).state == "COMPLETED"
        trials = {trial.training["batch_size"]: trial for trial in client.trials("recipe")}
        seen = {size: [(run.epoch, run.step) for run in trial.runs] for size, trial in trials.items()}
        best = client.best(task="digits", optimizer="adamw", model="linear")
        row = client.comparison("recipe").rows[0]
    steps = {32: 37, 128: 9}  # of 1,197 samples, the last incomplete batch left out
    assert {size: runs[0] for size, runs in seen.items()} == {size: (2, 2 * n) for size, n in steps.items()}
    chosen = best.training["batch_size"]
    assert seen[chosen] == [(2, 2 * steps[chosen])] * 2  # the confirm run, too
    assert row.training == best.training
    assert best.task_config["batch_size"] == chosen
    assert run_command(["best", "--task", "digits", "--optimizer", "adamw", "--url", served.url]) == 0
    said = capsys.readouterr().out
    assert f"batch_size: {chosen}\n" in said[said.index("Its recipe, as a study's task:\ntask:\n") :]


def test_a_front_of_two_objectives(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """The example study, shorter: its fronts are those of brute force over its runs, and Optuna's own."""
    study = yaml.safe_load((STUDIES / "pareto.yaml").read_text())
    study["task"] |= {"model": "linear", "epochs": 2}
    study |= {"budget": {"trials_per_optimizer": 7}, "confirm": {"seeds": [0]}}
    with Client(served.url) as client:
        assert client.submit(study).wait(timeout_s=PATIENCE_S).state == "COMPLETED"
        view = client.pareto("pareto")
        trials = {(one.label, one.number): one for one in client.trials("pareto") if one.state == "COMPLETE"}
        best = client.best(task="digits", optimizer="admetar", model="linear")
    assert view.searched
    values: dict[tuple[str, int], tuple[float, float]] = {}
    for front in view.fronts:
        for one in front.trials:
            run = trials[one.label, one.trial].runs[0]
            assert one.values == pytest.approx([run.value, run.train_s])  # of two epochs the median is the mean
            values[one.label, one.trial] = one.values[0], one.values[1]
        own = [of for (label, _), of in values.items() if label == front.label]
        expected = [not any(a >= x and s <= y and (a, s) != (x, y) for a, s in own) for x, y in own]
        assert [one.on_front for one in front.trials] == expected
    assert values.keys() == trials.keys()
    assert {one.trial for one in best.front} == {one.trial for one in view.fronts[0].trials if one.on_front}
    assert best.trial == view.fronts[0].trials[0].trial  # by accuracy alone
    engine = make_engine(f"sqlite:///{served.home / 'admeta.sqlite3'}")
    kept = optuna.load_study(study_name="pareto/admetar", storage=optuna_storage(engine, REQUEST))
    assert {one.number for one in kept.best_trials} == {one.trial for one in best.front}
    engine.dispose()
    assert run_command(["pareto", "pareto", "--url", served.url]) == 0
    assert "Hypervolume: admetar" in capsys.readouterr().out


def test_cancel_stops_the_trials_and_ctrl_c_ends_every_process(served: Served) -> None:
    slow = definition("slow", task={"name": "synthetic", "model": "idle", "epochs": 200, "sleep_s": 0.5})
    with Client(served.url) as client:
        client.submit(slow)

        def n_open(*kinds: str) -> int:
            return sum(getattr(search, kind) for search in client.study("slow").searches for kind in kinds)

        wait_until(lambda: n_open("n_running") > 0, what="a trial runs", poll_s=0.2)
        assert client.cancel("slow").state == "CANCELLED"
        wait_until(lambda: n_open("n_running", "n_waiting") == 0, what="no trial is open", poll_s=0.2)
        assert {trial.runs[0].failure for trial in client.trials("slow", state="FAIL")} == {"cancelled"}
    processes = _descendants(served.process.pid)
    # Of Ray's own those that a study needs. The others hold 0.1 GiB each, and Ray waits for one of them as it starts.
    commands = [command for command in map(_command, processes) if "ray" in command]
    assert any("gcs_server" in command for command in commands)
    assert not [command for command in commands if "dashboard.py" in command or "monitor.py" in command]
    assert served.stop() == 0
    wait_until(lambda: not any(map(_command, processes)), what="every process has ended", poll_s=0.5)
