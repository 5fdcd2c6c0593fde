"""A study's results as files: a row a run (CSV, Parquet), trials as they are (JSON), the comparison (LaTeX).

Owns the columns. Streams: takes trials one after another and holds no more than a batch of them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from tempfile import TemporaryFile
from typing import Any

from pydantic import TypeAdapter

import tasks.registry
from admeta.client.formatting import n_runs, spread
from admeta.client.models import (
    ComparisonView,
    ParetoView,
    RunView,
    ScaleView,
    SensitivityView,
    StudyRunView,
    TrialView,
)
from admeta.client.terminal.tables import analyses
from admeta.client.text import latex, latex_list, markdown
from search.space import Space
from service.database.queries.summaries import test_metric

BATCH = 1000
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Columns:
    """The columns of a row a run: fixed ones, then a test metric each, then an optimizer's setting each."""

    test_metrics: tuple[str, ...]
    numbers: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        settings = [f"settings.{name}" for name in sorted((*self.numbers, *self.others))]
        return [*_FIXED, *self.test_metrics, *settings]


_FIXED: dict[str, str] = {
    "label": "string", "optimizer": "string", "trial": "int64", "trial_state": "string", "stage": "string",
    "seed": "int64", "state": "string", "value": "float64", "failure": "string", "error": "string",
    "epoch": "int64", "step": "int64", "train_s": "float64", "gpu_s": "float64", "attempts": "int64",
    "started_at": "string", "finished_at": "string",
}  # fmt: skip


def columns(definition: Mapping[str, Any]) -> Columns:
    """The columns that fit every run of the study. A setting that is always a number has a column of numbers.

    Args:
        definition: as it is stored; a rule that a later release added does not keep its results from being exported.
    """
    info = tasks.registry.all_tasks().get(definition["task"]["name"])  # a study may outlive its task's installation
    values: dict[str, list[Any]] = {}
    for optimizer in definition["optimizers"]:
        for name, parameter in TypeAdapter(Space).validate_python(optimizer["space"]).items():
            values.setdefault(name, []).extend(parameter.end_points())
        for name, value in optimizer["fixed"].items():
            values.setdefault(name, []).append(value)
    if asked := definition.get("sensitivity"):
        values.setdefault(asked["parameter"], [])  # also where it is at its default in all trials
    numbers = {name for name, known in values.items() if all(_is_number(value) for value in known)}
    return Columns(
        test_metrics=tuple(
            sorted({*(info.test_metrics if info else ()), test_metric(definition["objective"]["metric"])})
        ),
        numbers=tuple(sorted(numbers)),
        others=tuple(sorted(values.keys() - numbers)),
    )


def rows(trials: Iterable[TrialView], others: Iterable[StudyRunView], chosen: Columns) -> Iterator[dict[str, Any]]:
    """A row for every run; what a run does not have is None.

    Args:
        others: the runs that belong to no trial.
    """
    for trial in trials:
        of_trial = {
            "label": trial.label,
            "optimizer": trial.optimizer,
            "trial": trial.number,
            "trial_state": trial.state,
        }
        for run in trial.runs:
            yield _row(of_trial, run, trial.chosen, chosen)
    for one in others:
        yield _row({"label": one.label, "optimizer": one.optimizer}, one, one.chosen, chosen)


def to_csv(trials: Iterable[TrialView], others: Iterable[StudyRunView], chosen: Columns) -> Iterator[bytes]:
    """CSV with a header line; lists are JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, chosen.names)
    writer.writeheader()
    for row in rows(trials, others, chosen):
        writer.writerow(row)
        if text.tell() > _CHUNK_BYTES // 16:
            yield _drain(text)
    yield _drain(text)


def to_json(trials: Iterable[TrialView]) -> Iterator[bytes]:
    """A JSON list of trials as `GET …/trials` gives them."""
    separator = b"["
    for trial in trials:
        yield separator + trial.model_dump_json().encode()
        separator = b",\n"
    yield b"]\n" if separator != b"[" else b"[]\n"


def to_parquet(trials: Iterable[TrialView], others: Iterable[StudyRunView], chosen: Columns) -> Iterator[bytes]:
    """Parquet, a row group a thousand rows; written to a temporary file, because its index comes last."""
    import pyarrow
    import pyarrow.parquet

    types = {**_FIXED, **dict.fromkeys(chosen.test_metrics, "float64")}
    types |= {f"settings.{name}": "float64" for name in chosen.numbers}
    types |= {f"settings.{name}": "string" for name in chosen.others}
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(types[name])) for name in chosen.names])
    left = rows(trials, others, chosen)
    with TemporaryFile() as file:
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            while batch := list(islice(left, BATCH)):
                writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
        file.seek(0)
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def to_latex(
    view: ComparisonView,
    sensitivity: SensitivityView | None = None,
    pareto: ParetoView | None = None,
    scale: ScaleView | None = None,
) -> str:
    """The comparison as a booktabs table, verdicts as sentences, tables of sensitivity, Pareto fronts and sizes."""
    table = latex(*_compared(view), comment=f"{_about(view)}; validation selected, test is only reported")
    found = table + latex_list(_verdicts(view))
    if sensitivity is not None:
        found += "\n" + latex(*analyses.sensitivity_rows(sensitivity), comment=analyses.tolerance(sensitivity))
    if pareto is not None:
        found += "\n" + latex(*analyses.front_rows(pareto), comment=analyses.hypervolumes(pareto))
    if scale is not None:
        found += "\n" + latex(*analyses.scale_rows(scale), comment=_LADDER) + latex_list(analyses.scale_in_words(scale))
    return found


_LADDER = "best settings at each size; ?: the best trial's value, where the trials show no minimum"


def to_markdown(
    view: ComparisonView,
    sensitivity: SensitivityView | None = None,
    pareto: ParetoView | None = None,
    scale: ScaleView | None = None,
) -> str:
    """The comparison as a table, every verdict as a sentence, and tables of sensitivity, Pareto fronts and sizes."""
    parts = [f"{_about(view)}. Validation selected, test is only reported.", markdown(*_compared(view)).rstrip()]
    sentences = "\n".join(f"- {sentence}" for sentence in _verdicts(view))
    if sentences:
        parts.append(sentences)
    if sensitivity is not None:
        parts += [f"{analyses.tolerance(sensitivity)}.", markdown(*analyses.sensitivity_rows(sensitivity)).rstrip()]
    if pareto is not None:
        parts += [markdown(*analyses.front_rows(pareto)).rstrip(), analyses.hypervolumes(pareto)]
    if scale is not None:
        parts += [f"{_LADDER[0].upper()}{_LADDER[1:]}.", markdown(*analyses.scale_rows(scale)).rstrip()]
        parts.append("\n".join(f"- {line}" for line in analyses.scale_in_words(scale)))
    return "\n\n".join(parts) + "\n"


def _about(view: ComparisonView) -> str:
    return f"study {view.study}, task {view.task}"


def _compared(view: ComparisonView) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: mean ± standard deviation over the confirm seeds, or over repeated searches."""
    rows = view.optimizers or view.rows
    test = next((row.test_metric for row in rows if row.test_metric), "test")
    head = ["optimizer", view.metric, test, "searches" if view.optimizers else "seeds", "trials"]
    shown = [(row, spread(row.validation), spread(row.test)) for row in rows]
    return head, [[row.label, *spreads, n_runs(row.validation), str(row.n_trials)] for row, *spreads in shown]


def _verdicts(view: ComparisonView) -> list[str]:
    return [*view.remarks, *(f"{pair.sentence}." for pair in view.pairs)]


def _row(of_trial: Mapping[str, Any], run: RunView, settings: Mapping[str, Any], chosen: Columns) -> dict[str, Any]:
    fixed: Mapping[str, Any] = {
        "trial": None, "trial_state": None, **of_trial,
        "stage": run.stage, "seed": run.seed, "state": run.state, "value": run.value, "failure": run.failure,
        "error": run.error, "epoch": run.epoch, "step": run.step, "train_s": run.train_s, "gpu_s": run.gpu_s,
        "attempts": len(run.attempts), "started_at": _time(run.started_at), "finished_at": _time(run.finished_at),
    }  # fmt: skip
    tests = {name: run.test_metrics.get(name) for name in chosen.test_metrics}
    numbers = {f"settings.{name}": _float(settings.get(name)) for name in chosen.numbers}
    others = {f"settings.{name}": _json(settings.get(name)) for name in chosen.others}
    return {**fixed, **tests, **numbers, **others}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _json(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _time(value: Any) -> str | None:
    return None if value is None else value.isoformat()


def _drain(text: io.StringIO) -> bytes:
    chunk = text.getvalue().encode()
    text.seek(0)
    text.truncate()
    return chunk
