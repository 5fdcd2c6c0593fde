"""Results: a study's as files, which parameters mattered, the best settings over all studies, the paper's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import optuna
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import Field, ValidationError
from sqlalchemy import Engine

import search.paper.tables
from admeta.client.models import (
    BestView,
    ErrorView,
    FieldError,
    ImportanceView,
    Page,
    PaperStudyView,
    PaperTableCellsView,
    PaperTableView,
    ParetoView,
    ProfilesView,
    RecommendationView,
    RecommendRequest,
    ScaleView,
    SearchView,
    SensitivityView,
    StudiesComparisonView,
    StudyView,
)
from search.errors import SearchError, TooFewTrialsError
from search.objectives import MOST
from search.paper.comparison import compare_table, list_tables, paper_studies
from search.paper.comparison import paper_study as find_study
from search.states import ExportFormat, ImportanceMethod, SignificanceTest, Stage, TimeUnit
from service import export
from service.api.catalog import known_optimizer, known_task
from service.api.errors import ApiError, invalid_definition
from service.api.invalid import body_fields
from service.api.openapi import json_body, refusals
from service.api.requests import MAX_PAGE, Database, Filters, JsonBody, parse_body
from service.database import queries
from service.database.optuna_storage import optuna_storage
from service.database.queries import best_results, measured
from service.database.queries.plots import search_importance
from service.database.retry import REQUEST

Item = TypeVar("Item")
MAX_COMPARED = 8
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": ErrorView}}
router = APIRouter(prefix="/v1/studies/{study}", tags=["results"], responses=_NOT_FOUND)
best = APIRouter(prefix="/v1", tags=["best"])
paper = APIRouter(prefix="/v1/paper", tags=["paper"])


class ExportFilters(Filters):
    """The format of the file."""

    format: ExportFormat = Field(default=ExportFormat.CSV, description="latex, markdown: the comparison only.")


class ImportanceFilters(Filters):
    """The method of importance."""

    method: ImportanceMethod | None = Field(default=None, description="Default: what suits the number of trials.")


@router.get(
    "/export",
    response_class=Response,
    responses={200: {"content": {form.media_type.split(";")[0]: {"schema": {}} for form in ExportFormat}}},
)
def export_study(engine: Database, study: str, filters: Annotated[ExportFilters, Query()]) -> Response:
    """Download the results: csv and parquet have a row a run, json the trials, latex and markdown the comparison."""
    view = queries.get_study_view(engine, study)
    chosen = filters.format
    headers = {"Content-Disposition": f'attachment; filename="{view.name}.{chosen.suffix}"'}
    if chosen in (ExportFormat.LATEX, ExportFormat.MARKDOWN):
        write = export.to_latex if chosen is ExportFormat.LATEX else export.to_markdown
        pareto = queries.pareto(engine, view.id) if (view.definition or {}).get("objectives") else None
        text = write(
            queries.comparison(engine, view.id), asked_sensitivity(engine, view), pareto, asked_scale(engine, view)
        )
        return Response(text, media_type=chosen.media_type, headers=headers)
    columns = export.columns(view.definition or {})
    trials = _all_items(queries.list_trials, engine, view.id)
    others = _all_items(queries.list_runs, engine, view.id, stage=Stage.SENSITIVITY)
    chunks: Iterable[bytes]
    match chosen:
        case ExportFormat.CSV:
            chunks = export.to_csv(trials, others, columns)
        case ExportFormat.PARQUET:
            chunks = export.to_parquet(trials, others, columns)
        case ExportFormat.JSON:
            chunks = export.to_json(trials)
    return StreamingResponse(chunks, media_type=chosen.media_type, headers=headers)


def asked_sensitivity(engine: Engine, study: StudyView) -> SensitivityView | None:
    """What the study's sensitivity runs show; None where its definition asks for none, or is another version's."""
    if not (study.definition or {}).get("sensitivity"):
        return None
    try:
        return queries.sensitivity(engine, study.id)
    except SearchError:
        return None


def asked_scale(engine: Engine, study: StudyView) -> ScaleView | None:
    """The study's ladder of sizes; None where its definition has none, or is another version's."""
    if not (study.definition or {}).get("scale"):
        return None
    try:
        return queries.scale(engine, study.id)
    except SearchError:
        return None


class SensitivityFilters(Filters):
    """The parameter, and how much worse than the best a result may be."""

    parameter: str | None = Field(
        default=None, max_length=100, description="Default: the one that the study's definition names, or else lr."
    )
    within: float = Field(
        default=0.01, gt=0, lt=1, description="Tolerance as a share of the absolute value of the best result."
    )
    margin: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Tolerance in the metric's unit, in its place; for metrics near 0, of which a share says nothing.",
    )


@router.get("/sensitivity")
def get_sensitivity(engine: Database, study: str, filters: Annotated[SensitivityFilters, Query()]) -> SensitivityView:
    """How each optimizer's result depends on one parameter around its chosen value, and how wide the good range is.

    From the study's sensitivity runs, and from all trials and confirm runs that differ in this parameter alone.
    """
    return queries.sensitivity(engine, study, **filters.model_dump())


class ParetoFilters(Filters):
    """What trials are judged by beside the study's metric."""

    objective: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default=[],
        max_length=MOST,
        description="A cost of a run, such as train_s or peak_memory_bytes, or another metric; repeat it for several. "
        "Default: what the study was searched for, or else train_s.",
    )


@router.get("/pareto")
def get_pareto(engine: Database, study: str, filters: Annotated[ParetoFilters, Query()]) -> ParetoView:
    """The Pareto front of each optimizer over its complete trials, also where it was not searched for.

    Values are those of one training each. Seconds are of the median epoch times their number.
    """
    return queries.pareto(engine, study, objectives=filters.objective)


@router.get("/scale", responses={409: {"model": ErrorView}})
def get_scale(engine: Database, study: str) -> ScaleView:
    """A study's ladder of sizes: the best settings over size, their prediction and its verification, and speed-ups.

    409 where the study's definition has no `scale`.
    """
    return queries.scale(engine, study)


@router.get("/importance")
def get_importance(
    engine: Database, request: Request, study: str, filters: Annotated[ImportanceFilters, Query()]
) -> list[ImportanceView]:
    """How much each searched parameter mattered for the rank of a trial, for each optimizer's search."""
    view = queries.get_study_view(engine, study)
    storage = _optuna_storage(request, engine)
    return [_importance(engine, search, storage, filters.method) for search in view.searches]


def _all_items(list_page: Callable[..., Page[Item]], engine: Engine, study_id: str, **filters: Any) -> Iterator[Item]:
    """The items of all pages of a study's list."""
    cursor: str | None = None
    while True:
        page = list_page(engine, study_id, limit=MAX_PAGE, cursor=cursor, **filters)
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return


def _importance(
    engine: Engine, search: SearchView, storage: optuna.storages.BaseStorage, method: ImportanceMethod | None
) -> ImportanceView:
    try:
        result = search_importance(engine, storage, search.optuna_study, method=method)
    except KeyError:
        reason = f"no trial of search '{search.label}' has begun"
    except TooFewTrialsError as error:
        reason = str(error)
    else:
        return ImportanceView(label=search.label, **vars(result))
    n_complete, n_trials = search.n_complete, search.n_complete + search.n_pruned
    return ImportanceView(
        label=search.label, method=None, shares={}, n_trials=n_trials, n_complete=n_complete, reason=reason
    )


def _optuna_storage(request: Request, engine: Engine) -> optuna.storages.BaseStorage:
    """One storage for the application: it caches the finished trials that it has read."""
    state = request.app.state
    if not hasattr(state, "optuna_storage"):
        state.optuna_storage = optuna_storage(engine, REQUEST)
    storage: optuna.storages.BaseStorage = state.optuna_storage
    return storage


class BestFilters(Filters):
    """Which best settings."""

    task: str = Field(max_length=100, description="A name from GET /v1/tasks.")
    optimizer: str = Field(max_length=100, description="A name from GET /v1/optimizers.")
    model: str | None = Field(default=None, max_length=200, description="Only studies of this model.")
    metric: str | None = Field(default=None, max_length=100, description="Default: the task's own.")
    recipe: str | None = Field(
        default=None,
        max_length=64,
        pattern="^[0-9a-f]+$",
        description="Only studies of this recipe, a hash or its beginning. Default: the recipe with most epochs.",
    )


@best.get("/best", responses=_NOT_FOUND)
def get_best(engine: Database, filters: Annotated[BestFilters, Query()]) -> BestView:
    """The best settings known; `settings` constructs the optimizer: `cls(parameters, **settings)`."""
    info = known_task(filters.task, status=422)
    known_optimizer(filters.optimizer, status=422)
    metric = filters.metric or info.default_metric
    if not info.has_metric(metric):
        rule = f"task '{info.name}' has the metrics {', '.join(sorted(info.metrics))}"
        raise ApiError(
            422,
            "unknown_metric",
            f"metric = '{metric}': {rule}.",
            hint="Leave it out for the task's own.",
            fields=[FieldError(field="metric", value=metric, rule=rule)],
        )
    found = queries.best(
        engine,
        task=info.name,
        optimizer=filters.optimizer,
        model=filters.model,
        metric=metric,
        recipe=filters.recipe,
    )
    if found is None:
        of_model = f" with model '{filters.model}'" if filters.model else ""
        of_model += f" in a recipe that begins with {filters.recipe}" if filters.recipe else ""
        names = {one.best.optimizer for one in best_results(engine) if one.best.task == info.name}
        others = f"; the task has results of {', '.join(sorted(names))}" if names else ""
        raise ApiError(
            404,
            "no_result",
            f"no finished trial of optimizer '{filters.optimizer}' on task '{info.name}'{of_model} yet{others}.",
            hint="Submit a study of it (POST /v1/studies), or wait for the first trial of one.",
        )
    return queries.with_front(engine, found)


@best.post(
    "/recommend",
    openapi_extra=json_body(RecommendRequest, example={"task": "cifar10", "model": "resnet20", "gpu_hours": 2.0}),
    responses=refusals(400, 413, 415, 422),
)
async def recommend(engine: Database, raw: JsonBody) -> RecommendationView:
    """Which optimizer, settings and recipe to use now, how sure that is, and what further hours are best spent on.

    Nothing is changed: the scope `read` is enough. `plan` is a study that spends the hours; POST /v1/studies takes it.
    """
    asked = parse_body(RecommendRequest, raw, error="invalid_query")
    check_recommendable(asked)
    return await run_in_threadpool(queries.recommendation, engine, asked)


def check_recommendable(asked: RecommendRequest) -> None:
    """Raises ApiError where the service knows no such task or model."""
    info = known_task(str(asked.task_fields.get("name", "")), status=422)
    try:
        queries.config_of(asked)
    except ValidationError as error:
        fields = body_fields(error, asked.task_fields, known=list(info.config.model_fields))
        named = [
            one.model_copy(update={"field": "model" if one.field == "model" else f"task.{one.field}"}) for one in fields
        ]
        raise invalid_definition(
            named,
            error="invalid_query",
            hint="`task` may be an object with the fields of the task, as in a study; `admeta recommend --set "
            "FIELD=VALUE` gives one. GET /v1/tasks shows them.",
        ) from None


class StudiesFilters(Filters):
    """Which studies to compare."""

    study: list[str] = Field(
        min_length=2, max_length=MAX_COMPARED, description="An id or a name; repeat it for each study, two to eight."
    )
    test: SignificanceTest = Field(default=SignificanceTest.MODERATED, description="As in a study's comparison.")


@best.get("/comparison", responses=_NOT_FOUND)
def compare_studies(engine: Database, filters: Annotated[StudiesFilters, Query()]) -> StudiesComparisonView:
    """Two to eight studies side by side: results, how the definitions differ, and verdicts where the recipe is one."""
    return queries.compare_studies(engine, studies_to_compare(engine, filters.study), test=filters.test)


def studies_to_compare(engine: Engine, studies: Sequence[str]) -> list[str]:
    """The ids of two to eight studies, each once, also where both its id and its name are given.

    Raises:
        ApiError: they are less or more.
        StudyNotFoundError: no study has one of the ids or names.
    """
    found = list(dict.fromkeys(studies))
    if len(found) <= MAX_COMPARED:
        found = list(dict.fromkeys(queries.study_state(engine, study)[0] for study in found))
    if 2 <= len(found) <= MAX_COMPARED:
        return found
    raise ApiError(
        422,
        "studies_to_compare",
        f"{len(found)} studies are chosen; two to {MAX_COMPARED} can be compared.",
        hint="Choose them in the list of studies, by the boxes before their names. GET /v1/comparison takes `study` "
        "several times.",
    )


RecipePrefix = Annotated[str, Field(min_length=1, max_length=64, pattern="^[0-9a-f]+$")]
ShortName = Annotated[str, Field(min_length=1, max_length=400)]


class ProfileFilters(Filters):
    """Which studies are compared across their tasks. Each list may be given several times: study=a&study=b."""

    study: list[ShortName] = Field(default=[], max_length=200, description="Only these studies, by id or name.")
    recipe: list[RecipePrefix] = Field(
        default=[], max_length=200, description="Only these recipes, by hash or its beginning."
    )
    task: list[ShortName] = Field(default=[], max_length=200, description="Only these tasks, from GET /v1/tasks.")
    tag: str | None = Field(default=None, max_length=40, description="Only studies with this tag.")
    optimizer: list[ShortName] = Field(
        default=[],
        max_length=100,
        description="Compare these, by their names in an answer. Default: those with most results on two recipes or "
        "more.",
    )
    time: TimeUnit = Field(default=TimeUnit.SECONDS, description="What the time to a target is counted in.")

    def choice(self) -> queries.Choice:
        """As the query takes it; an unknown task or a single optimizer raises ApiError."""
        if len(set(self.optimizer)) == 1:
            rule = "two optimizers or more are compared"
            raise ApiError(
                422,
                "invalid_query",
                f"optimizer = '{self.optimizer[0]}': {rule}.",
                hint="Name another one as well, or leave it out.",
                fields=[FieldError(field="optimizer", value=self.optimizer, rule=rule)],
            )
        names = [known_task(name, status=422).name for name in self.task]
        return queries.Choice(
            studies=self.study, recipes=self.recipe, tasks=names, tag=self.tag, optimizers=self.optimizer
        )


@best.get("/profiles", responses=_NOT_FOUND)
def get_profiles(engine: Database, filters: Annotated[ProfileFilters, Query()]) -> ProfilesView:
    """Optimizers compared across tasks: performance profiles, and mean ranks with Friedman's test.

    A task is a recipe; results are never compared across recipes. Studies with the tag `void` are left out.
    """
    return queries.profiles(engine, filters.choice(), time=filters.time)


class StudyForm(StrEnum):
    """The size of a study of the paper."""

    FULL = "full"
    SMOKE = "smoke"


class FormFilter(Filters):
    """Which size of a study."""

    form: StudyForm = Field(
        default=StudyForm.FULL, description="smoke: a tiny model, one epoch and few trials, to see that the study runs."
    )


@paper.get("/tables")
def list_paper_tables(engine: Database) -> list[PaperTableView]:
    """The paper's result tables, in its order, with how many of their numbers we have measured."""
    return list_tables(measured(best_results(engine)))


@paper.get("/tables/{table}", responses=_NOT_FOUND)
def get_paper_table(engine: Database, table: str) -> PaperTableCellsView:
    """One of the paper's tables, cell by cell: its number, ours, and the difference."""
    if table not in search.paper.tables.result_tables():
        known = ", ".join(search.paper.tables.result_tables())
        raise ApiError(
            404,
            "paper_table_not_found",
            f"the paper has no result table '{table[:100]}'; known: {known}",
            hint="GET /v1/paper/tables lists them.",
        )
    return compare_table(table, measured(best_results(engine)))


@paper.get("/studies")
def list_paper_studies() -> list[PaperStudyView]:
    """The studies that measure what the paper's tables report, in the order of the tables."""
    return [study.view() for study in paper_studies().values()]


@paper.get("/studies/{paper_study}", responses=_NOT_FOUND)
def get_paper_study(paper_study: str, asked: Annotated[FormFilter, Query()]) -> PaperStudyView:
    """One of these studies with its definition, which POST /v1/studies accepts."""
    try:
        found = find_study(paper_study)
    except SearchError as error:
        hint = "GET /v1/paper/studies lists them."
        raise ApiError(404, "paper_study_not_found", str(error)[:2000], hint=hint) from None
    return found.small_view() if asked.form is StudyForm.SMOKE else found.whole_view()
