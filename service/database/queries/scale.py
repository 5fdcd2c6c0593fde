"""A study's ladder of sizes: best settings over size, their prediction and its verification, speed-ups over size."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from admeta.client.models import (
    ParameterFitView,
    ScaleCurveView,
    ScaleSearchView,
    ScaleView,
    SpeedupView,
    SweepView,
)
from search.definition import StudyDefinition
from search.errors import StudyConflictError
from search.optimizer_search import OptimizerSearch
from search.prediction import ParameterFit, Sweep, fits_of, sweep_of
from search.records import Point
from search.scale import Scale
from search.states import Direction, RunState, Stage, StudyState
from service.database.engine import reading
from service.database.models import Run, Search, Study
from service.database.queries.chosen import chosen_trials, curves_of, searches_with_best
from service.database.queries.comparison import place_in_definition
from service.database.queries.lookup import definition_of, find_study
from service.database.queries.summaries import TrialSummary
from service.database.retry import REQUEST, retried

Trials = Mapping[int, Sequence[tuple[Mapping[str, Any], float]]]
"""By search, parameters and value of its complete trials."""


@retried(REQUEST)
def scale(engine: Engine, study: str) -> ScaleView:
    """A study's ladder of sizes.

    Raises:
        StudyNotFoundError: no study has this id or name.
        StudyConflictError: the study has one size.
        SearchError: this version cannot read the study's definition.
    """
    with reading(engine) as session:
        row = find_study(session, study)
        definition = definition_of(row)
        asked = definition.scale
        if asked is None:
            raise StudyConflictError(
                f"study '{row.name}' trains one size of its model; submit one with 'scale', such as "
                "{field: width, values: [64, 128, 256], predict: 512}."
            )
        searches = searches_with_best(session, row)
        chosen = chosen_trials(session, row, searches)
        trials = _trials(session, row)
        finals = _curves(session, chosen)
        places = {
            (place["listed_as"], place["size"]): one for one, _ in searches for place in [place_in_definition(row, one)]
        }
        against = _reference(definition)
        epochs = definition.task.epochs
        return ScaleView(
            study=row.name,
            metric=row.metric,
            direction=row.direction,
            field=asked.field,
            values=sorted(asked.values),
            predict=asked.predict,
            against=against,
            complete=row.state == StudyState.COMPLETED,
            curves=[
                _curve(
                    one,
                    asked,
                    {size: search for (label, size), search in places.items() if label == one.label},
                    trials,
                    chosen,
                    row,
                    _speedups(one.label, against, asked, places, finals, row.direction, epochs=epochs),
                )
                for one in definition.optimizers
            ],
        )


def _reference(definition: StudyDefinition) -> str:
    """The optimizer that speed-ups are over: that of the contrasts, else AdamW, else the first."""
    if definition.contrasts is not None:
        return definition.contrasts.against
    return next((one.label for one in definition.optimizers if one.name == "adamw"), definition.optimizers[0].label)


def _trials(session: Session, study: Study) -> Trials:
    found: dict[int, list[tuple[Mapping[str, Any], float]]] = defaultdict(list)
    query = (
        select(Run.search_id, Run.params, Run.value)
        .join(Run.search)
        .where(Search.study_id == study.id, Run.stage == Stage.SEARCH, Run.state == RunState.COMPLETE)
        .order_by(Run.search_id, Run.trial_number)
    )
    for search_id, params, value in session.execute(query):
        if value is not None:
            found[search_id].append((params, value))
    return found


def _curve(
    optimizer: OptimizerSearch,
    asked: Scale,
    searches: Mapping[float, Search],
    trials: Trials,
    chosen: Mapping[int, TrialSummary],
    study: Study,
    speedups: Sequence[SpeedupView],
) -> ScaleCurveView:
    by_size = {size: trials.get(search.id, ()) for size, search in searches.items()}
    fits = fits_of(optimizer, asked, by_size, study.direction)
    sweep = sweep_of(optimizer, asked, by_size, study.direction)
    return ScaleCurveView(
        label=optimizer.label,
        optimizer=optimizer.name,
        searches=[
            ScaleSearchView(
                size=size,
                label=search.label,
                verifies=size == asked.predict,
                n_complete=len(by_size[size]),
                value=one.score if (one := chosen.get(search.id)) is not None else None,
            )
            for size, search in searches.items()
        ],
        fits=[ParameterFitView(**vars(fit), sentence=_fit_in_words(fit, asked)) for fit in fits],
        sweep=None if sweep is None else _sweep_view(sweep, fits, asked, study),
        speedups=list(speedups),
    )


def _fit_in_words(fit: ParameterFit, asked: Scale) -> str:
    if fit.predicted is None or fit.slope is None or fit.slope_low is None or fit.slope_high is None:
        return f"{fit.parameter}: a line over {asked.field} needs three sizes with a complete trial"
    law = f"∝ {asked.field}^" if fit.log else f"changes by ln({asked.field}) × "
    unsure = [one.size for one in fit.best if one.is_best_trial]
    note = ""
    if unsure:
        sizes = ", ".join(f"{size:g}" for size in unsure)
        note = f"; at {sizes} the trials show no minimum within their range, so the interval is wide"
    return (
        f"{fit.parameter} {law}{fit.slope:.2g} ({fit.slope_low:.2g} to {fit.slope_high:.2g}); at {asked.field} "
        f"{asked.predict:g} predicted {fit.predicted:.3g} ({fit.low:.3g} to {fit.high:.3g}){note}"
    )


def _sweep_view(sweep: Sweep, fits: Sequence[ParameterFit], asked: Scale, study: Study) -> SweepView:
    reached = next((value for at, value in sweep.results if at == sweep.predicted), None)
    best_result = study.direction.best(value for _, value in sweep.results)
    fit = next((one for one in fits if one.parameter == sweep.parameter), None)
    refuted = None
    if fit is not None and None not in (fit.low, fit.high, sweep.low, sweep.high):
        refuted = bool(sweep.low > fit.high or sweep.high < fit.low)  # type: ignore[operator]
    where = f"{asked.field} {asked.predict:g}"
    if sweep.predicted is None or sweep.ratio is None or reached is None:
        sentence = f"no complete trial at {where} has the settings that are predicted now"
    else:
        apart = max(sweep.ratio, 1 / sweep.ratio)
        between = "" if sweep.low is None else f" ({sweep.low:.3g} to {sweep.high:.3g})"
        kept = {None: "", True: "; the prediction is refuted", False: "; the prediction holds"}[refuted]
        sentence = (
            f"of {len(sweep.results)} trials at {where} {sweep.parameter} was best at {sweep.best:.3g}{between}, and "
            f"{sweep.predicted:.3g} was predicted: × {apart:.2f} apart{kept}. The predicted settings reached "
            f"{study.metric} {reached:.4g}, the best trial {best_result:.4g}"
        )
    return SweepView(
        **vars(sweep), predicted_result=reached, best_result=best_result, refuted=refuted, sentence=sentence
    )


def _curves(session: Session, chosen: Mapping[int, TrialSummary]) -> dict[int, list[list[Point]]]:
    """By search, the curves of the complete runs that its chosen trial counts by."""
    runs = {search_id: [run.id for run in one.counted if run.state == RunState.COMPLETE]
            for search_id, one in chosen.items()}  # fmt: skip
    curves = curves_of(session, [run_id for of in runs.values() for run_id in of])
    return {search_id: [curves[run_id] for run_id in of if curves[run_id]] for search_id, of in runs.items()}


def _speedups(
    label: str,
    against: str,
    asked: Scale,
    places: Mapping[tuple[str, float | None], Search],
    curves: Mapping[int, Sequence[Sequence[Point]]],
    direction: Direction,
    *,
    epochs: int,
) -> list[SpeedupView]:
    """By size, of one optimizer over the reference; sizes at which either has no complete run are left out."""
    found = []
    for size in asked.sizes if label != against else ():
        own, reference = (
            curves.get(search.id, ()) if (search := places.get((one, size))) else () for one in (label, against)
        )
        finals = [value for curve in reference if (value := curve[-1].value) is not None]
        if not own or not finals:
            continue
        target = statistics.fmean(finals)
        times = [epochs_to(curve, target, direction) for curve in own]
        ratios = sorted(0.0 if time is None else epochs / time for time in times)
        middle = statistics.median_low(ratios)
        found.append(
            SpeedupView(
                size=size,
                target=target,
                epochs=epochs / middle if middle else None,
                speedup=middle or None,
                low=ratios[0] or None,
                high=ratios[-1] or None,
                n=len(own),
            )
        )
    return found


def epochs_to(curve: Sequence[Point], target: float, direction: Direction) -> float | None:
    """Epochs until the value was reached, on straight lines between evaluations; None where it never was."""
    known = [(point.epoch, point.value) for point in curve if point.value is not None]
    if known and direction.reaches(known[0][1], target):
        return float(known[0][0])
    for (before, value_before), (after, value) in pairwise(known):
        if direction.reaches(value, target):
            return before + (target - value_before) / (value - value_before) * (after - before)
    return None
