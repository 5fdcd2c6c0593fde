"""The command `profile`: optimizers across tasks, from a service or from a file of outside curves."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from admeta.cli.options import Output, OutputOption, Url, connect, study_names, task_names
from admeta.cli.output import emit, emit_plain, say, show
from admeta.client.errors import ServiceError
from admeta.client.states import Direction, TimeUnit
from admeta.client.terminal.tables import across

if TYPE_CHECKING:
    from admeta.client.models import ProfilesView
    from search.analysis.algoperf import Evaluation, Score, Targets

_FORMAT_HINT = 'docs/verdicts.md, "Outside curves", describes the files.'


def profile(
    study: Annotated[
        list[str] | None, typer.Option(help="Only this study. May be repeated.", autocompletion=study_names)
    ] = None,
    recipe: Annotated[
        list[str] | None, typer.Option(help="Only this recipe, a hash or its beginning. May be repeated.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="Only this task. May be repeated.", autocompletion=task_names)
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only studies with this tag.")] = None,
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            help="Compare this one, named as in the table. May be repeated.  [default: those with most results]"
        ),
    ] = None,
    time: Annotated[TimeUnit, typer.Option(help="What the time to a target is counted in.")] = TimeUnit.SECONDS,
    curves: Annotated[
        Path | None,
        typer.Option(
            help="Score the curves of this file (CSV or JSON lines, also .xz) without a service.", metavar="FILE"
        ),
    ] = None,
    targets: Annotated[
        Path | None,
        typer.Option(
            help="Targets of the curves, in AlgoPerf's JSON.  [default: the file's column, or *targets.json beside it]",
            metavar="FILE",
        ),
    ] = None,
    url: Url = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare optimizers across tasks: performance profiles, time-to-target scores, mean ranks with Friedman's test."""
    filters = {"study": study, "recipe": recipe, "task": task, "tag": tag, "optimizer": optimizer, "url": url}
    if curves is not None:
        given = [f"--{name}" for name, value in filters.items() if value]
        if given:
            raise typer.BadParameter(f"{given[0]} has no effect on curves of a file", param_hint="--curves")
        views = score_curves(curves, targets)
        if output is Output.TABLE:
            for view in views:
                _show(view)
        else:
            emit(views, output, table=str)
        return
    if targets is not None:
        raise typer.BadParameter("needs --curves", param_hint="--targets")
    with connect(url) as client:
        view = client.profiles(
            studies=study or (), recipes=recipe or (), tasks=task or (), tag=tag, optimizers=optimizer or (), time=time
        )
    if output is Output.TABLE:
        _show(view)
    else:
        emit_plain(view.model_dump(mode="json"), output)


def _show(view: ProfilesView) -> None:
    if view.group:
        say(f"\n{view.group}")
    if view.optimizers:
        show(across.profile_scores(view), across.profile_tasks(view))
    if view.left_out:
        say("")
        show(across.left_out(view))
    say(f"\n{view.sentence}")


def score_curves(curves: Path, targets: Path | None) -> list[ProfilesView]:
    """Each group of a file of curves, scored by AlgoPerf's rules.

    Raises:
        ServiceError: a file cannot be read, or breaks a rule.
    """
    from search.analysis import AnalysisError
    from search.analysis.algoperf import find_targets, read_curves, read_targets, scores, targets_of

    try:
        groups: dict[str, list[Evaluation]] = defaultdict(list)
        for row in read_curves(curves):
            groups[row.group].append(row)
        views = []
        for group, rows in groups.items():
            of_group = None if targets else targets_of(rows)
            of_group = of_group or read_targets(targets or find_targets(curves, group=group))
            views.append(_view(group, scores(rows, of_group), of_group))
    except AnalysisError as error:
        raise ServiceError(f"{error}.", hint=_FORMAT_HINT) from None
    return views


def _view(group: str, found: dict[str, Score], targets: Targets) -> ProfilesView:
    from admeta.client.models import (
        LeftOutView,
        ProfileOptimizerView,
        ProfileResultView,
        ProfilesView,
        ProfileTaskView,
        ProfileView,
        RankTestView,
    )
    from search.analysis.across import sentence, told_apart
    from search.analysis.profiles import friedman, full_ranks

    times = {workload: {name: score.times[workload] for name, score in found.items()} for workload in targets.base}
    reached = {workload: of for workload, of in times.items() if min(of.values()) < math.inf}
    test = friedman([(of, Direction.MINIMIZE) for of in reached.values()])
    apart = told_apart(test)
    by_score = sorted(found, key=lambda name: -found[name].score)
    return ProfilesView(
        group=group or None,
        sentence=sentence(test, apart),
        time=TimeUnit.SECONDS,
        optimizers=[
            ProfileOptimizerView(
                name=name,
                mean_rank=test.mean_ranks.get(name),
                by_time=ProfileView(tau=list(of.profile.tau), rho=list(of.profile.rho), area=of.score),
                by_value=None,
            )
            for name in by_score
            for of in [found[name]]
        ],
        tasks=[
            ProfileTaskView(
                task=workload,
                direction=targets.by_workload[workload].direction,
                target=targets.by_workload[workload].value,
            )
            for workload in targets.base
        ],
        results=[
            ProfileResultView(
                task=workload,
                optimizer=name,
                rank=rank,
                n=found[name].n_studies[workload],
                time=times[workload][name],
                n_reached=found[name].n_reached[workload],
                ratio=found[name].profile.ratios[workload],
            )
            for workload in targets.base
            for name, rank in full_ranks(times[workload], direction=Direction.MINIMIZE).items()
        ],
        ranks=RankTestView(**vars(test), groups=apart),
        left_out=[
            LeftOutView(kind="task", name=workload, reason="no optimizer reached its target; it has no ranks")
            for workload in times
            if workload not in reached
        ],
    )
