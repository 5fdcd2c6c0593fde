"""Commands on results, the paper, and what a study can name: compare, best, paper, …, tasks, optimizers, cluster."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from admeta.cli.options import (
    Changes,
    Output,
    OutputOption,
    StudyArgument,
    Url,
    completed,
    connect,
    optimizer_names,
    study_names,
    task_names,
)
from admeta.cli.output import Searches, emit, emit_plain, say, show, show_comparison
from admeta.cli.studies import Timeout, Wait, report
from admeta.client.errors import ClientError, ServiceError
from admeta.client.states import ExportFormat, ImportanceMethod, SignificanceTest
from admeta.client.terminal.tables import across, analyses, catalog, comparisons
from admeta.client.text import latex, markdown

if TYPE_CHECKING:
    from admeta.client import Client
    from admeta.client.models import BestView, StudiesComparisonView

_FORMATS = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".tex": "latex", ".md": "markdown"}


def compare(
    studies: Annotated[
        list[str],
        typer.Argument(
            help="A study's name or id; two to eight are shown side by side.",
            metavar="STUDY...",
            autocompletion=study_names,
        ),
    ],
    test: Annotated[
        SignificanceTest, typer.Option(help="Significance test; wilcoxon pairs runs by seed.")
    ] = SignificanceTest.MODERATED,
    searches: Annotated[
        Searches, typer.Option(help="each: also a line for each of an optimizer's repeated searches.")
    ] = Searches.TOGETHER,
    curves: Annotated[
        bool, typer.Option("--curves", help="Also the best of n trials and the time to the target, with bands.")
    ] = False,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare a study's optimizers, or several studies. Validation selects, test is only reported."""
    with connect(url) as client:
        if len(studies) > 1:
            if curves or searches is not Searches.TOGETHER:
                option = "--curves" if curves else "--searches"
                raise typer.BadParameter("has no effect on several studies; name one", param_hint=option)
            _compare_studies(client.compare(studies, test=test), output)
            return
        view = client.comparison(studies[0], test=test)
    if output is not Output.TABLE:
        emit(view, output, table=str)
        return
    if not view.complete:
        say("The study is not COMPLETED: these are the results that it has. `admeta show` tells its state.", err=True)
    show_comparison(view, searches=searches)
    if curves:
        say("\nMedian of the best of n trials drawn at random from each search's, with a band for all n (95 %):\n")
        parts = [comparisons.best_of_n(view)]
        parts += [comparisons.time_to_target(view)] if any(row.target for row in view.rows) else []
        show(*parts)


def _compare_studies(view: StudiesComparisonView, output: Output) -> None:
    if output is not Output.TABLE:
        emit(view, output, table=str)
        return
    parts = [comparisons.studies(view)]
    parts += [comparisons.differences(view)] if view.differences else []
    parts += [comparisons.pairs(view)] if view.pairs else []
    show(*parts)
    if view.no_verdicts:
        say(f"\nThere are no verdicts: {view.no_verdicts}")


def best(
    task: Annotated[str, typer.Option(help="A task's name.", autocompletion=task_names)],
    optimizer: Annotated[
        str | None, typer.Option(help="An optimizer's name.  [default: all]", autocompletion=optimizer_names)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only studies of this model.")] = None,
    metric: Annotated[str | None, typer.Option(help="Default: the task's own.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Only studies of this recipe, a hash or its beginning.  [default: most epochs]")
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the best known settings for a task and an optimizer over all studies, or for each optimizer."""
    with connect(url) as client:
        if optimizer is not None:
            view = client.best(task=task, optimizer=optimizer, model=model, metric=metric, recipe=recipe)
            emit(view, output, table=lambda found: across.best([found]))
            if output is Output.TABLE and view.code:
                say(f"\n{view.code}", nl=False)
            if output is Output.TABLE and view.training:
                say("\nIts recipe, as a study's task:")
                emit_plain({"task": view.task_config}, Output.YAML)
            if output is Output.TABLE and view.front:
                say(f"\nIts Pareto front in study {view.study}, by {', '.join(of.metric for of in view.objectives)}:")
                show(analyses.front_of(view))
            views = [view]
        else:
            views = _best_of_each(client, task, model=model, metric=metric, recipe=recipe)
            emit(views, output, table=across.best)
    if output is Output.TABLE:
        for note in across.on_recipes(views):
            say(f"\n{note}")


def recommend(
    task: Annotated[str, typer.Option(help="A task's name.", autocompletion=task_names)],
    model: Annotated[str | None, typer.Option(help="A model of the task.  [default: the task's own]")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A field of the task, as in a study's definition: data_dir=scans. May be repeated.",
            metavar="PATH=VALUE",
        ),
    ] = None,
    gpu_hours: Annotated[float, typer.Option(min=0, help="Hours that can be spent before they are used.")] = 0,
    plan: Annotated[
        Path | None, typer.Option(help="Write the study that spends the hours to this file, for `admeta submit`.")
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Recommend an optimizer with its settings, say how sure that is, and what hours are best spent on."""
    from admeta.client import studyfile

    with connect(url) as client:
        asked = studyfile.with_changes({"name": task}, changes or [])
        view = client.recommend(task=asked, model=model, gpu_hours=gpu_hours)
    emit(view, output, table=across.candidates)
    if output is Output.TABLE:
        say(f"\n{view.how_sure}\n\n{view.code}")
        asks = "With --gpu-hours H it also says what H further hours are best spent on."
        say(f"Spend the hours on {view.spend}: {view.why}." if gpu_hours else asks)
    if plan is not None and view.plan is None:
        raise ServiceError(f"there is no plan to write to '{plan}': {view.why}.", hint="Give more --gpu-hours.")
    if plan is not None:
        try:
            plan.write_text(studyfile.dump(view.plan), encoding="utf-8")
        except OSError as error:
            raise ServiceError(f"cannot write '{plan}': {error.strerror}.", hint="Choose another path.") from None
        say(f"wrote {plan}", err=True)
    elif view.plan is not None and output is Output.TABLE:
        say("\nA study that does so (--plan FILE writes it, `admeta submit FILE` submits it):")
        emit_plain(view.plan, Output.YAML)


def importance(
    study: StudyArgument,
    method: Annotated[ImportanceMethod | None, typer.Option(help="Method.  [default: by the number of trials]")] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how much each searched parameter mattered."""
    with connect(url) as client:
        views = client.importance(study, method=method)
    emit(views, output, table=analyses.importance)
    if output is Output.TABLE and any(view.intervals for view in views):
        say("In brackets: 90 % intervals. Shares of a search explain the ranks of its trials.")


def scale(study: StudyArgument, url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Show the best settings at each size of a study's model, and what they predict for another size."""
    with connect(url) as client:
        view = client.scale(study)
    emit(view, output, table=analyses.scale)
    if output is Output.TABLE:
        for line in analyses.scale_in_words(view):
            say(line)


def sensitivity(
    study: StudyArgument,
    parameter: Annotated[
        str | None, typer.Option(help="A parameter that is a number.  [default: the study's own, or lr]")
    ] = None,
    within: Annotated[float, typer.Option(help="Tolerance as a share of the best result.")] = 0.01,
    margin: Annotated[float | None, typer.Option(help="Tolerance in the metric's unit, in its place.")] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how far a parameter may be off until the results get worse."""
    with connect(url) as client:
        view = client.sensitivity(study, parameter=parameter, within=within, margin=margin)
    emit(view, output, table=analyses.sensitivity)
    if output is Output.TABLE:
        for curve in view.curves:
            say(f"{curve.label}: {curve.sentence}" + (f"; {curve.note}" if curve.note else ""))


def pareto(
    study: StudyArgument,
    objective: Annotated[
        list[str] | None,
        typer.Option(help="A cost, such as train_s, or a metric; repeat it.  [default: the study's own, or train_s]"),
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show each optimizer's Pareto front: no other trial is as good in all objectives and better in one."""
    with connect(url) as client:
        view = client.pareto(study, objectives=objective or ())
    emit(view, output, table=analyses.pareto)
    if output is Output.TABLE:
        say(f"\n{analyses.hypervolumes(view)}")


def export(
    study: StudyArgument,
    file: Annotated[
        Path | None, typer.Argument(help="Where to write; default: stdout, as csv.", metavar="[FILE]")
    ] = None,
    form: Annotated[
        ExportFormat | None, typer.Option("--format", help="[default: by the file's name]", show_default=False)
    ] = None,
    url: Url = None,
) -> None:
    """Write a study's results to a file: runs (csv, parquet), trials (json), or the comparison (latex, markdown)."""
    chosen = form or (_FORMATS.get(file.suffix) if file else "csv")
    if chosen is None:
        raise ServiceError(
            f"'{file}' has no known ending.", hint=f"End the name in {', '.join(_FORMATS)}, or give --format."
        )
    with connect(url) as client:
        if file is None:
            client.export(study, sys.stdout.buffer, form=chosen)
            return
        part = file.with_name(file.name + ".part")  # a broken download leaves no file that looks whole
        try:
            with part.open("wb") as target:
                client.export(study, target, form=chosen)
            part.replace(file)
        except OSError as error:
            raise ServiceError(f"cannot write '{file}': {error.strerror}.", hint="Choose another path.") from None
        finally:
            part.unlink(missing_ok=True)
    say(f"wrote {file}", err=True)


def _best_of_each(client: Client, task: str, **filters: str | None) -> list[BestView]:
    """The best settings of every optimizer that a study of the task searched, import paths and joint names too."""
    found: list[BestView] = []
    missing: ClientError | None = None
    searched = {search.optimizer for study in client.studies(task=task) for search in study.searches}
    for optimizer in sorted(searched) or [client.optimizers()[0].name]:  # one at least: the task may be unknown
        try:
            found.append(client.best(task=task, optimizer=optimizer, **filters))
        except ClientError as error:
            if error.error not in ("no_result", "unknown_optimizer"):  # unknown: its package is gone from the service
                raise
            missing = error
    if not found and missing is not None:
        of = "".join(f" with {name} '{value}'" for name, value in filters.items() if value)
        raise ClientError(
            f"no finished trial on task '{task}'{of} yet.",
            hint=missing.hint,
            status=missing.status,
            error=missing.error,
        )
    return found


def tasks(
    name: Annotated[
        str | None, typer.Argument(help="Show the settings of this task.", metavar="[NAME]", autocompletion=task_names)
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the tasks that a study can name, or the settings of one task."""
    with connect(url) as client:
        if name is None:
            emit(client.tasks(), output, table=catalog.task_list)
        else:
            task = client.task(name)
            emit(task, output, table=catalog.task_settings)
            if output is Output.TABLE and task.recipe_fields:
                say(f"\nA study may search under 'recipe': {', '.join(task.recipe_fields)}")


def optimizers(
    name: Annotated[
        str | None,
        typer.Argument(help="Show the parameters of this optimizer.", metavar="[NAME]", autocompletion=optimizer_names),
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the optimizers that a study can name, or the parameters of one."""
    with connect(url) as client:
        if name is None:
            emit(client.optimizers(), output, table=catalog.optimizer_list)
        else:
            emit(client.optimizer(name), output, table=catalog.parameters)


def cluster(url: Url = None, output: OutputOption = Output.TABLE) -> None:
    """Show the machines with their free CPUs and GPUs, the runs on them, and the studies that wait."""
    with connect(url) as client:
        view = client.cluster()
    if output is Output.TABLE:
        waiting = "".join(f"\n  {n}. {study.name}" for n, study in enumerate(view.queue, start=1))
        say(f"Ray is {view.ray}; {len(view.runs)} runs are training, {len(view.queue)} studies are waiting{waiting}")
    emit(view, output, table=catalog.cluster)


_paper_tables = completed(lambda client, *_: (table.name for table in client.paper_tables()))
_paper_studies = completed(lambda client, *_: (study.name for study in client.paper_studies()))

_Smoke = Annotated[
    bool,
    typer.Option("--smoke", help="A small form, to see that it runs: tiny model, one epoch, few trials, no GPU."),
]


class TableOutput(StrEnum):
    """How a table of the paper is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    MARKDOWN = "markdown"
    LATEX = "latex"


def build_paper() -> typer.Typer:
    """The group of commands on the paper: its tables, its studies, and running one of them."""
    group = typer.Typer(
        help="The paper's tables with this service's results, and the studies that produce them.", no_args_is_help=True
    )
    group.command("tables")(show_tables)
    group.command("studies")(show_studies)
    group.command("run")(run)
    return group


def show_tables(
    name: Annotated[
        str | None,
        typer.Argument(help="Show this table, cell by cell.", metavar="[TABLE]", autocompletion=_paper_tables),
    ] = None,
    url: Url = None,
    output: Annotated[
        TableOutput, typer.Option("--output", "-o", help="Output format; markdown and latex work for one table.")
    ] = TableOutput.TABLE,
) -> None:
    """List the paper's result tables, or show one: each cell is the paper's number / ours."""
    is_text = output in (TableOutput.MARKDOWN, TableOutput.LATEX)
    if name is None and is_text:
        raise typer.BadParameter(f"{output.value} works for one table: add its name", param_hint="TABLE")
    with connect(url) as client:
        if name is None:
            emit(client.paper_tables(), Output(output.value), table=catalog.paper_table_list)
            return
        view = client.paper_table(name)
    if is_text:
        write = markdown if output is TableOutput.MARKDOWN else latex
        say(write(*catalog.paper_rows(view)), nl=False)
        return
    emit(view, Output(output.value), table=catalog.paper_cells)
    for note in view.notes if output is TableOutput.TABLE else ():
        say(f"note: {note}", err=True)


def show_studies(
    name: Annotated[
        str | None, typer.Argument(help="Show this study.", metavar="[NAME]", autocompletion=_paper_studies)
    ] = None,
    smoke: _Smoke = False,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the studies that produce the paper's tables, or show one; JSON and YAML then contain its definition."""
    if name is None and smoke:
        raise typer.BadParameter("--smoke works for one study: add its name", param_hint="NAME")
    with connect(url) as client:
        if name is None:
            emit(client.paper_studies(), output, table=catalog.paper_study_list)
        else:
            emit(client.paper_study(name, form=_form(smoke=smoke)), output, table=catalog.paper_study)


def run(
    name: Annotated[str, typer.Argument(help="A study's name.", metavar="NAME", autocompletion=_paper_studies)],
    smoke: _Smoke = False,
    changes: Changes = None,
    wait: Wait = False,
    timeout: Timeout = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a study of the paper. The same study again is found, not created."""
    from admeta.client import studyfile

    with connect(url) as client:
        found = client.paper_study(name, form=_form(smoke=smoke))
        definition = studyfile.with_changes(found.definition or {}, changes or [])
        report(client, client.submit(definition), wait=wait, timeout_s=timeout, output=output)


def _form(*, smoke: bool) -> str:
    return "smoke" if smoke else "full"
