"""Values as text, the same for the command line and the pages: numbers, times, results, settings, search spaces."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from admeta.client.models import BestView, ComparedRowView, ComparisonRow, SpreadView, TrainedView

NOTHING = "–"
_FIRST = ("lr", "lambd", "beta")


def number(value: float | None) -> str:
    """Four significant digits; a dash where there is none."""
    return NOTHING if value is None else f"{value:.4g}"


def chance(probability: float) -> str:
    """A probability with two digits, which say neither never nor always."""
    return "<0.01" if probability < 0.01 else ">0.99" if probability > 0.99 else f"{probability:.2f}"


def spread(view: SpreadView) -> str:
    """Mean ± standard deviation."""
    if view.mean is None:
        return NOTHING
    return number(view.mean) if view.std is None else f"{view.mean:.4f} ± {view.std:.4f}"


def reached(view: BestView | ComparisonRow | ComparedRowView) -> str:
    """What confirm runs reached on the validation data; where there are none, the search's own run."""
    return number(view.search_value) if view.validation.mean is None else spread(view.validation)


def n_runs(validation: SpreadView) -> str:
    """The number of confirm runs, with those that failed: a mean of survivors alone would mislead."""
    n, n_failed = validation.n, validation.n_failed
    return f"{n_failed} of {n + n_failed} failed" if n_failed else str(n or "")


def duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 1:02:03, or 2:03."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rough_duration(seconds: float) -> str:
    """Seconds in the largest unit of which there is at least one: 40 s, 12 min, 3 h, 5 d."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def moment(time: datetime) -> str:
    """A time in this machine's time zone, to the minute."""
    return f"{time.astimezone():%Y-%m-%d %H:%M}"


def settings(values: Mapping[str, Any] | None) -> str:
    """Parameters on one line, the most important first: lr=0.01 lambd=0.1 betas=[0.9, 0.999]."""
    known = values or {}
    order = [name for name in _FIRST if name in known] + [name for name in known if name not in _FIRST]
    return " ".join(f"{name}={setting(known[name])}" for name in order)


def searched_in(name: str, parameter: Mapping[str, Any]) -> str:
    """A parameter with the values that a search takes: lr [0.0001, 0.1] log."""
    prefix = f"{name} " if name else ""
    if "choices" in parameter:
        return prefix + "{" + ", ".join(setting(choice) for choice in parameter["choices"]) + "}"
    scale = " log" if parameter.get("log") else ""
    return f"{prefix}[{setting(parameter['low'])}, {setting(parameter['high'])}]{scale}"


def setting(value: Any) -> str:
    """One setting's value, as YAML writes it; a float with four significant digits."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {setting(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(setting(item) for item in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sources(view: TrainedView) -> str:
    """How earlier studies gave the settings: taken from first/adamw/3, which second/adamw/0 is near."""
    if not view.taken_from:
        return ""
    first, *near = [f"{one.study}/{one.label}/{one.trial}" for one in view.taken_from]
    how = "a step from" if view.taken_from[0].is_step else "taken from"
    return ", near ".join([f"{how} {first}", *([", ".join(near)] if near else [])])
