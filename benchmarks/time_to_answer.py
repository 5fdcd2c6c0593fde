"""Seconds from submitting a study over REST to its first epoch and to its end, at a new service, and a second time.

    python -m benchmarks.time_to_answer [--study studies/digits.yaml] [--data DIR] [--set PATH=VALUE …] [--repeats 3]
    python -m benchmarks.time_to_answer --card cifar10 --data DIR [--parts service no-mps four-cores plain] [--out FILE]
    python -m benchmarks.time_to_answer --card cola --data DIR [--model minilm-size] [--out FILE]

Each repeat starts a service with an empty home and submits the study as soon as REST answers, while Ray still starts
("first"), then once more under another name when it has ended ("second"), and runs `admeta demo` with the study, from
the command to its last line. Times are those of the study's events; the table has medians, and each repeat's figures.

`--card` is the same on a card, once: five optimizers with eight trials of eight epochs and three seeds each, with
`gpus: auto`. Its parts, each of which may run by itself:

    service     a new service: the study ("cold"), and a second time, when it knows the card
    no-mps      a new service on which NVIDIA's multi-process service does not start
    four-cores  a new service that has four of the machine's CPU cores
    plain       the loop that a careful user writes for CIFAR-10, in Ray Tune with Optuna, four trials on the card: what
                it trains within `--plain-s`, from which the time for all of the study's runs is computed

`--model minilm-size` writes a network of MiniLM's size with random weights into the data folder, for machines without
the package; it trains as fast. Every part also tells the share of the time from submit to the end in which the card
worked (nvidia-smi, each half second), and what the study told meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from admeta.client import Client, studyfile
from admeta.client.errors import ClientError

ADMETA = (sys.executable, "-m", "admeta.cli")
MILESTONES = {
    "RUNNING": lambda kind, data: kind == "study.state" and data["state"] == "RUNNING",
    "first trial": lambda kind, _: kind == "trial.created",
    "first epoch": lambda kind, _: kind == "metric",
    "COMPLETED": lambda kind, data: kind == "study.state" and data["state"] == "COMPLETED",
}
"""What is waited for, and the first event that shows it."""
START_TIMEOUT_S = 120.0
PARTS = ("service", "no-mps", "four-cores", "plain")
OPTIMIZERS = ["admetar", "admetas", "sgdm", "adamw", "adabelief"]
TASKS: dict[str, dict[str, Any]] = {
    "cifar10": {"name": "cifar10", "model": "resnet20", "epochs": 8, "batch_size": 128},
    "cola": {"name": "cola", "model": "minilm", "epochs": 8, "batch_size": 32},
}
MINILM_SIZE = "minilm-size"
N_IMAGES = 45_000  # of an epoch of CIFAR-10, without those that validate


@contextmanager
def service(
    home: Path, data: Path | None, *, before: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[Client]:
    """`admeta serve` with this home, until the end of the block; its client, as soon as it answers.

    Args:
        before: words of the command line before `admeta`.
        environment: of the service, besides this process's.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ["serve", "--home", str(home), "--port", str(port), *(["--data", str(data)] if data else [])]
    command, variables = [*before, *ADMETA, *arguments], {**os.environ, **(environment or {})}
    with (
        home.with_suffix(".log").open("w") as log,
        subprocess.Popen(command, stderr=log, env=variables) as process,
    ):
        try:
            with Client(f"http://127.0.0.1:{port}") as client:
                deadline = time.monotonic() + START_TIMEOUT_S
                while not _answers(client) and time.monotonic() < deadline:
                    time.sleep(0.05)
                yield client
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _answers(client: Client) -> bool:
    try:
        client.health()
    except ClientError:
        return False
    return True


def time_study(
    client: Client, definition: dict[str, Any], *, told: Callable[[float, str], None] = lambda at_s, reason: None
) -> dict[str, float]:
    """Seconds from the study's submission to each milestone; raises SystemExit where the study does not complete.

    Args:
        told: is given each reason that the study tells, and when.
    """
    study = client.submit(definition).study
    seen: dict[str, float] = {}
    for event in client.events(study.id):
        if event.kind == "study.state" and event.data.get("reason"):
            told((event.at - study.created_at).total_seconds(), event.data["reason"])
        for name, shows in MILESTONES.items():
            if name not in seen and shows(event.kind, event.data):
                seen[name] = (event.at - study.created_at).total_seconds()
    if seen.keys() != MILESTONES.keys():
        raise SystemExit(f"study {study.name} did not complete: {client.study(study.id).reason}")
    return seen


def time_demo(home: Path, study: Path) -> float:
    """Seconds of `admeta demo`, from the command to its end."""
    begin = time.perf_counter()
    subprocess.run([*ADMETA, "demo", "--home", str(home), "--study", str(study)], check=True, capture_output=True)
    return time.perf_counter() - begin


@dataclass
class CardClock:
    """How much of the time a card works, while the block is open.

    Attributes:
        samples: percent of the time since the sample before in which a kernel ran; empty without nvidia-smi.
    """

    samples: list[float] = field(default_factory=list)

    def __enter__(self) -> CardClock:
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500", "-i", "0"]
        self._process: subprocess.Popen[str] | None = None
        with suppress(OSError):
            self._process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        return self

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with suppress(ValueError):
                self.samples.append(float(line))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    @property
    def busy_share(self) -> float | None:
        """Of the samples in which a kernel ran; None without any."""
        return sum(sample > 0 for sample in self.samples) / len(self.samples) if self.samples else None


def card_definition(task: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The study of `--card`, without its name."""
    definition = {
        "task": dict(task),
        "optimizers": OPTIMIZERS,
        "budget": {"trials_per_optimizer": 8},
        "pruner": "none",
        "confirm": {"top_k": 1, "seeds": [0, 1, 2]},
        "resources": {"cpus": 1, "gpus": "auto"},
    }
    return studyfile.with_changes(definition, list(changes))


def time_on_card(client: Client, definition: dict[str, Any], name: str) -> dict[str, Any]:
    """The milestones of one study, how much of the time the card worked, and what the study told; printed, too."""

    def told(at_s: float, reason: str) -> None:
        print(f"  {at_s:6.1f} s  {reason}", flush=True)

    print(f"{name}:", flush=True)
    with CardClock() as clock:
        figures: dict[str, Any] = time_study(client, {**definition, "name": name}, told=told)
    figures["card busy"] = clock.busy_share
    study = client.study(name)
    runs = [run for trial in client.trials(study.id) for run in trial.runs]
    figures["training seconds"] = sum(run.train_s for run in runs)
    words = ", ".join(f"{key} {value:.2f}" for key, value in figures.items() if value is not None)
    print(f"{name}: {words}", flush=True)
    return figures


def without_mps(folder: Path) -> dict[str, str]:
    """An environment in which NVIDIA's multi-process service cannot be started."""
    folder.mkdir()
    refusing = folder / "nvidia-cuda-mps-control"
    refusing.write_text("#!/bin/sh\nexit 1\n")
    refusing.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def write_minilm_size(data: Path) -> None:
    """Write a BERT of MiniLM's size with random weights, and a tokenizer of CoLA's words, into the data folder."""
    from transformers import BertConfig, BertModel

    from tasks.data import pretrained

    folder = data / MINILM_SIZE
    folder.mkdir(exist_ok=True)
    train = next(path for path in (data / "CoLA/train.tsv", data / "glue/CoLA/train.tsv") if path.is_file())
    pretrained._write(folder, [line.rpartition("\t")[2] for line in train.read_text("utf-8").splitlines()])
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    BertModel(BertConfig(vocab_size=30_522, **sizes)).save_pretrained(folder)


def measure_card(arguments: argparse.Namespace) -> None:
    """Measure the parts that were asked for; `--out` has those that are done, by name."""

    def add(name: str, answer: dict[str, Any]) -> None:
        figures[name] = answer
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(figures, indent=1))

    task = {**TASKS[arguments.card], **({"model": arguments.model} if arguments.model else {})}
    if arguments.model == MINILM_SIZE:
        write_minilm_size(arguments.data)
    definition = card_definition(task, arguments.set)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ways: dict[str, dict[str, Any]] = {
            "service": {},
            "no-mps": {"environment": without_mps(folder / "bin")},
            "four-cores": {"before": ("taskset", "-c", "0-3")},
        }
        for part in arguments.parts:
            if part == "plain":
                add(part, time_plain(arguments.data, limit_s=arguments.plain_s))
                continue
            try:
                with service(folder / part, arguments.data, **ways[part]) as client:
                    for name in ("cold", "second") if part == "service" else (part,):
                        add(name, time_on_card(client, definition, name))
            finally:
                if arguments.out is not None:
                    shutil.copyfile(folder / f"{part}.log", arguments.out.with_name(f"{part}.log"))


def time_plain(data: Path, *, limit_s: float) -> dict[str, float]:
    """What the plain loop trains within a time in Ray Tune with Optuna, and the time that the study would take so."""
    code = f"from benchmarks.time_to_answer import run_plain; run_plain({str(data.resolve())!r}, {limit_s!r})"
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    spent_s, images = time.perf_counter() - begin, answer["images"]
    n_runs = len(OPTIMIZERS) * (8 + 3)
    whole_s = answer["first epoch"] + n_runs * TASKS["cifar10"]["epochs"] * N_IMAGES / answer["rate"]
    print(f"plain: first epoch {answer['first epoch']:.1f} s, {images:.0f} images in {spent_s:.0f} s: "
          f"{whole_s:.0f} s for the study's {n_runs} runs", flush=True)  # fmt: skip
    return {**answer, "seconds": spent_s, "seconds for all": whole_s}


def run_plain(data: str, limit_s: float) -> None:
    """A user's own script: Ray Tune with OptunaSearch, four trials on the card; prints what it trained."""
    import ray
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    begin = time.time()

    def train(settings: dict[str, Any]) -> None:
        from benchmarks.plain_loop import PlainLoop
        from tasks.registry import parse_config

        config: Any = parse_config(TASKS["cifar10"])
        cores = max(1, (os.cpu_count() or 4) // 4 - 1)
        loop = PlainLoop(
            config, optimizer="sgdm", params={"lr": settings["lr"]}, seed=0, data_dir=Path(data), workers=cores
        )
        for _ in range(config.epochs):
            images, _ = loop.train()
            tune.report({"images": images, "accuracy": loop.test_accuracy(), "at": time.time()})

    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init("local", include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": paths}})
    n_trials = len(OPTIMIZERS) * 8
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": (os.cpu_count() or 4) / 4, "gpu": 0.25}),
        param_space={"lr": tune.loguniform(1e-2, 1.0)},
        tune_config=tune.TuneConfig(
            search_alg=OptunaSearch(), metric="accuracy", mode="max", num_samples=n_trials, time_budget_s=limit_s
        ),
        run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(), verbose=0),
    )
    frames = [result.metrics_dataframe for result in tuner.fit()]
    shown = [frame for frame in frames if frame is not None and len(frame)]
    if not shown:
        raise SystemExit(f"no trial ended an epoch within --plain-s {limit_s:g} s")
    ended = sorted((at, images) for frame in shown for at, images in zip(frame["at"], frame["images"], strict=True))
    (first, _), (last, _) = ended[0], ended[-1]
    if first == last:
        raise SystemExit(f"one epoch ended within --plain-s {limit_s:g} s: no rate can be told")
    rate = sum(images for _, images in ended[1:]) / (last - first)
    figures = {"images": sum(images for _, images in ended), "first epoch": first - begin, "rate": rate}
    print(json.dumps({name: float(value) for name, value in figures.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, default=Path("studies/digits.yaml"))
    parser.add_argument("--data", type=Path, help="folder of data sets")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="a change of the definition")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--card", choices=list(TASKS), help="the study of this task on a card instead")
    parser.add_argument("--model", help="of --card, in place of resnet20 or minilm")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["service"], help="of --card")
    parser.add_argument("--plain-s", type=float, default=240.0, help="of the part `plain`")
    parser.add_argument("--out", type=Path, help="write the figures of --card there as JSON")
    arguments = parser.parse_args()
    if arguments.card:
        if arguments.data is None:
            parser.error("--card needs --data, the folder of data sets")
        if arguments.card != "cifar10" and "plain" in arguments.parts:
            parser.error(f"--parts plain trains CIFAR-10: it says nothing of --card {arguments.card}")
        measure_card(arguments)
        return
    definition = studyfile.with_changes(studyfile.load(arguments.study), arguments.set)
    rows: dict[str, list[float]] = {}
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as folder:
            with service(Path(folder) / "home", arguments.data) as client:
                for which in ("first", "second"):
                    seconds = time_study(client, {**definition, "name": which})
                    for milestone, spent in seconds.items():
                        rows.setdefault(f"{which}: submit to {milestone}", []).append(spent)
            if arguments.data is None and not arguments.set:
                rows.setdefault("admeta demo", []).append(time_demo(Path(folder) / "demo", arguments.study))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{arguments.study}, {os.cpu_count()} CPUs, load {load}, medians of {arguments.repeats}")
    for name, values in rows.items():
        print(f"{name:32} {statistics.median(values):7.1f} s   ({', '.join(f'{value:.1f}' for value in values)})")


if __name__ == "__main__":
    main()
