"""The pages of studies: overview, study, search and trial; and the page of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy import Engine

import tasks.registry
from admeta.client import studyfile
from admeta.client.models import (
    ComparisonRow,
    ComparisonView,
    ExtendRequest,
    SearchView,
    SpreadView,
    StudyChanges,
    StudyRunView,
    StudyView,
    TrialView,
)
from admeta.client.terminal.tables.analyses import speedup_in_words
from admeta.client.terminal.tables.studies import all_failed
from admeta.registry import construction, known_optimizers
from search import run_log
from search.errors import StudyConflictError
from search.extension import LIMITS
from search.objectives import COSTS
from search.states import Direction, RunState, StudyState, Verdict
from service.api.health import get_cluster
from service.api.requests import Database, Filters, Limits, caller, parse_body
from service.api.results import asked_scale, asked_sensitivity
from service.api.studies import extend, remove_study
from service.dashboard.form import Filled, number
from service.dashboard.pages import page, part
from service.dashboard.study_facts import resources_in_words, study_facts
from service.dashboard.submit import Form
from service.database import events, queries, studies
from service.database.errors import TrialNotFoundError
from service.settings import Settings
from tasks.config import with_recipe
from tasks.engine.folders import inside

router = APIRouter(include_in_schema=False)

_EMPTY = BeforeValidator(lambda value: None if value == "" else value)  # a form sends what was left open as ""
Text = Annotated[Annotated[str, Field(max_length=100)] | None, _EMPTY]
Cursor = Annotated[Annotated[str, Field(max_length=500)] | None, _EMPTY]


class OverviewFilters(Filters):
    """Which studies to show."""

    q: Text = None
    state: Annotated[StudyState | None, _EMPTY] = None
    task: Text = None
    optimizer: Text = None
    tag: Text = None
    study: list[str] = Field(default=[], max_length=100, description="Ids of those chosen to be compared.")
    cursor: Cursor = None


class SearchFilters(BaseModel):
    """Which trials the table shows, in which order. What else is in the address is the scripts': `address.js`."""

    model_config = ConfigDict(frozen=True)

    state: Annotated[RunState | None, _EMPTY] = None
    order: Literal["number", "best"] = "best"
    cursor: Cursor = None


@router.get("/")
def overview(request: Request, engine: Database, filters: Annotated[OverviewFilters, Query()]) -> Response:
    """All studies, newest first, with their progress."""
    found = queries.list_studies(
        engine,
        state=filters.state,
        task=filters.task,
        optimizer=filters.optimizer,
        name=filters.q,
        tag=filters.tag,
        limit=50,
        cursor=filters.cursor,
    )
    chosen = filters.model_dump(exclude_none=True, exclude={"cursor", "study"})
    to_compare = {"study": filters.study} if filters.study else {}
    others = {*filters.study} - {study.id for study in found.items}
    return page(
        request,
        "overview.html",
        studies=found,
        leaders={study.id: leaders(study) for study in found.items},
        gpu_s=queries.gpu_seconds(engine, [study.id for study in found.items]),
        filters=filters,
        filtered=bool(chosen),
        also_chosen=queries.study_names(engine, sorted(others)) if others else {},
        states=[state.value for state in StudyState],
        tasks=sorted(tasks.registry.all_tasks()),
        optimizers=sorted(known_optimizers()),
        newest_event=events.kept_range(engine)[1],
        pages=_pages("/", chosen | to_compare, filters.cursor, found.next_cursor),
    )


@router.get("/studies/{study}")
def study_page(request: Request, engine: Database, study: str) -> Response:
    """Which optimizer, which settings, how sure."""
    newest_event = events.kept_range(engine)[1]  # read first: an event during the other queries is then sent again
    view = queries.get_study_view(engine, study)
    comparison = queries.comparison(engine, view.id)
    scale = common_scale(comparison.optimizers or comparison.rows)
    return page(
        request,
        "study.html",
        study=view,
        comparison=comparison,
        scale=scale,
        verdicts=verdicts(comparison),
        positions={search.label: position for position, search in enumerate(view.searches)},
        ended=StudyState(view.state).is_terminal,
        newest_event=newest_event,
        facts=study_facts(view, comparison),
        spaces={one["label"]: one for one in (view.definition or {}).get("optimizers", [])},
        active=queries.active_runs(engine, study_id=view.id, limit=100),
        remaining=queries.time_left(engine, view),
        failures=_all_failed(engine, view),
        sensitivity=asked_sensitivity(engine, view),
        objectives=_objectives(view),
        ladder=asked_scale(engine, view),
        speedup_in_words=speedup_in_words,
        addable=sorted(set(known_optimizers()) - {search.label for search in view.searches}),
    )


def _objectives(study: StudyView) -> list[str]:
    """What the study's figure of Pareto fronts can show beside the metric: first what it was searched for."""
    searched = [one["metric"] for one in (study.definition or {}).get("objectives", [])]
    known = tasks.registry.all_tasks().get(study.task)
    names = dict.fromkeys([*searched, *COSTS, *(known.metrics if known else ())])
    return [name for name in names if name != study.metric]


@router.post("/studies/{study}/{action}")
def act_on_study(
    request: Request,
    engine: Database,
    limits: Limits,
    study: str,
    action: Literal["pause", "resume", "cancel", "extend", "delete", "annotate"],
    filled: Form,
) -> Response:
    """Do what a button of the study's page says, and show the page again; the list of studies after a deletion."""
    target = f"/studies/{part(study)}"
    try:
        match action:
            case "pause":
                studies.request_pause(engine, study)
            case "resume":
                studies.request_resume(engine, study)
            case "cancel":
                studies.request_cancel(engine, study)
            case "extend":
                extend(engine, limits, study, _extension(filled), by=caller(request))
            case "delete":
                remove_study(engine, request, study)
                target = "/"
            case "annotate":
                notes, tags = (next(iter(filled.get(name, ())), "") for name in ("notes", "tags"))
                changes = {"notes": notes.replace("\r\n", "\n"), "tags": tags.replace(",", " ").split()}
                studies.change_study(engine, study, parse_body(StudyChanges, changes))
    except StudyConflictError:  # the study has changed since the page was read; show its state now
        if action in ("delete", "extend"):  # it may have ended long ago, and only the message says what it waits for
            raise
    return RedirectResponse(target, status_code=303)


def _extension(filled: Filled) -> ExtendRequest:
    """What the form asks for; numbers that it shows as they are change nothing."""
    first = {name: values[0] for name, values in filled.items() if values and values[0]}
    asked: dict[str, Any] = {name: number(first[name]) for name in ("trials", "seeds") if name in first}
    limits = {name: number(first[name]) for name in LIMITS if name in first}
    optimizers = [first["optimizer"]] if "optimizer" in first else []
    return parse_body(ExtendRequest, {**asked, "limits": limits, "optimizers": optimizers})


def _all_failed(engine: Engine, study: StudyView) -> dict[str, StudyRunView]:
    """By label, the last failure of each search whose finished trials all failed."""
    labels = all_failed(study)
    failures = queries.last_failures(engine, study.id) if labels else {}
    return {label: failures[label] for label in labels if label in failures}


@router.get("/studies/{study}/searches/{label}")
def search_page(
    request: Request, engine: Database, study: str, label: str, filters: Annotated[SearchFilters, Query()]
) -> Response:
    """One optimizer's search: how it went, what mattered, its trials."""
    newest_event = events.kept_range(engine)[1]
    view, search = find_search(engine, study, label)
    trials = queries.list_trials(
        engine, view.id, label=label, state=filters.state, order=filters.order, limit=50, cursor=filters.cursor
    )
    chosen = filters.model_dump(exclude_none=True, exclude={"cursor"})
    return page(
        request,
        "search.html",
        study=view,
        search=search,
        trials=trials,
        names=_names(trial.params for trial in trials.items),
        filters=filters,
        states=[state.value for state in RunState],
        ended=StudyState(view.state).is_terminal,
        newest_event=newest_event,
        pages=_pages(f"/studies/{view.id}/searches/{label}", chosen, filters.cursor, trials.next_cursor),
    )


@router.get("/studies/{study}/trials/{label}/{number}")
def trial_page(
    request: Request, engine: Database, study: str, label: str, number: Annotated[int, Path(ge=0, lt=2**31)]
) -> Response:
    """One trial: its settings, its runs, what went wrong."""
    newest_event = events.kept_range(engine)[1]
    view, search = find_search(engine, study, label)
    trial = queries.get_trial(engine, view.id, label, number)
    settings: Settings = request.app.state.settings
    attempts = queries.get_run(engine, trial.runs[0].id).attempts
    task = with_recipe((view.definition or {}).get("task", {}), trial.training)
    return page(
        request,
        "trial.html",
        study=view,
        search=search,
        trial=trial,
        sentences=_sentences_on(trial, queries.comparison(engine, view.id)) if len(trial.runs) > 1 else [],
        logs=readable_logs(engine, settings.storage, trial),
        environment=(attempts[-1].environment if attempts else None) or {},
        code=construction(
            trial.optimizer,
            trial.settings,
            weight_decay_on=task.get("weight_decay_on", "all"),
            parametrization=task.get("parametrization", "standard"),
        ),
        task_yaml=studyfile.dump({"task": task}) if trial.training else "",
        resources=", ".join(resources_in_words((view.definition or {}).get("resources", {}))),
        ended=StudyState(view.state).is_terminal,
        newest_event=newest_event,
    )


def _sentences_on(trial: TrialView, comparison: ComparisonView) -> list[str]:
    """The verdicts that rest on this trial; none where another trial stands for its search."""
    rows = [row for row in comparison.rows if (row.label, row.trial) == (trial.label, trial.number)]
    of = {row.listed_as if row.size is None else row.label for row in rows}
    return [pair.sentence for pair in comparison.pairs if of & {pair.a, pair.b}]


def _names(params: Any) -> list[str]:
    """Names of the parameters in order of first use."""
    return list(dict.fromkeys(name for some in params for name in some))


def _pages(path: str, chosen: dict[str, Any], cursor: str | None, next_cursor: str | None) -> dict[str, str | None]:
    """Addresses of the first and of the next page; None on the first and on the last page."""
    first = f"{path}?{urlencode(chosen, doseq=True)}" if chosen else path
    return {
        "first": first if cursor else None,
        "next": f"{path}?{urlencode({**chosen, 'cursor': next_cursor}, doseq=True)}" if next_cursor else None,
    }


@router.get("/cluster")
def show_cluster(request: Request, engine: Database) -> Response:
    """What `GET /v1/cluster` answers; read again every few seconds, since there are no events about nodes."""
    view = get_cluster(engine, request)
    known = {node.address for node in view.nodes}
    return page(
        request,
        "cluster.html",
        cluster=view,
        runs_at={address: [run for run in view.runs if run.node == address] for address in known},
        elsewhere=[run for run in view.runs if run.node not in known],
    )


def find_search(engine: Engine, study: str, label: str) -> tuple[StudyView, SearchView]:
    """A study by id or name, and its search with this label.

    Raises:
        StudyNotFoundError: no study has this id or name.
        TrialNotFoundError: it has no search with this label.
    """
    view = queries.get_study_view(engine, study)
    for search in view.searches:
        if search.label == label:
            return view, search
    labels = ", ".join(search.label for search in view.searches)
    raise TrialNotFoundError(f"study '{view.name}' has no search {label!r}.", hint=f"Its searches are {labels}.")


def readable_logs(engine: Engine, storage: str, trial: TrialView) -> dict[int, list[int]]:
    """By the id of each run, its attempts that have a log, and the one that runs."""
    found = {}
    for run_id, files in queries.trial_files(engine, trial).items():
        attempts = run_log.logged_attempts(inside(storage, files.folder))
        found[run_id] = sorted({*attempts, *([files.running] if files.running else [])})
    return found


def leaders(study: StudyView) -> set[str]:
    """Labels of the searches with the best value so far, where there are at least two to compare.

    None in a study of several sizes, whose searches are not compared with one another.
    """
    if (study.definition or {}).get("scale"):
        return set()
    values = {search.label: search.best_value for search in study.searches if search.best_value is not None}
    if len(values) < 2:
        return set()
    best = Direction(study.direction).best(values.values())
    return {label for label, value in values.items() if value == best}


def verdicts(comparison: ComparisonView) -> dict[str, str]:
    """By label, what is shown against the optimizer in the first place at its size; empty before anything is confirmed.

    Where searches are repeated, the labels are those of the definition.
    """
    rows = comparison.optimizers or comparison.rows
    ranked = [row for row in rows if row.rank is not None and row.baseline_of is None]
    if not ranked:
        return {}
    firsts = {row.size: row.label for row in reversed(ranked)}
    first_of = {row.label: firsts[row.size] for row in ranked}
    baselines = {row.label: row.baseline_of for row in rows if row.baseline_of is not None}
    found: dict[str, str] = {}
    for pair in comparison.pairs:
        if pair.b in baselines:
            told = "undecided against" if pair.better is None else "behind" if pair.better == pair.a else "better than"
            found[pair.b] = f"{told} {pair.a}" + ("" if pair.p_adjusted is None else f", p = {pair.p_adjusted:.2g}")
            continue
        first = first_of.get(pair.a)
        if first not in (pair.a, pair.b):
            continue
        other = pair.b if pair.a == first else pair.a
        if pair.better == first:
            found[other] = "behind"
        elif pair.verdict is Verdict.EQUIVALENT:
            found[other] = f"equivalent within {pair.margin:g}"
        elif pair.more is not None:
            found[other] = f"undecided: about {pair.more} more {'searches' if comparison.over_searches else 'seeds'}"
        else:
            found[other] = "undecided"
        if pair.p_adjusted is not None:
            found[other] += f", p = {pair.p_adjusted:.2g}"
    return found


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Mean and one standard deviation to either side, in percent of the drawing's width."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The values at both ends of the drawing, in the metric's unit."""

    low: float
    high: float

    def mark(self, spread: SpreadView, *, fallback: float | None = None) -> Mark | None:
        """The positions of the mean and its whiskers; `fallback` is drawn where there is no mean."""
        mean = spread.mean if spread.mean is not None else fallback
        if mean is None:
            return None
        std = spread.std or 0.0
        return Mark(low=self._at(mean - std), mean=self._at(mean), high=self._at(mean + std))

    def _at(self, value: float) -> float:
        share = 0.5 if self.high == self.low else (value - self.low) / (self.high - self.low)
        return 3.0 + 94.0 * share


def common_scale(rows: Sequence[ComparisonRow]) -> Scale | None:
    """A scale that covers the validation means of all optimizers with their whiskers; None without results."""
    ends: list[float] = []
    for row in rows:
        mean = row.validation.mean if row.validation.mean is not None else row.search_value
        if mean is not None:
            std = row.validation.std or 0.0
            ends += [mean - std, mean + std]
    return Scale(low=min(ends), high=max(ends)) if ends else None
