"""EMA against DEMA, worked out for a choice of settings: paths on a surface, the filters' gains, the stable region.

Every number is computed by `admeta` and `tasks` code: the paths are those of the optimizers that trials train with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from threading import BoundedSemaphore
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field, model_validator

from admeta.theory import (
    adam_equivalent_lr,
    beta_cliff,
    dema_gain,
    dema_response,
    ema_response,
    noise_gain,
    stability_limit,
)
from service.api.errors import ApiError
from service.api.requests import Filters
from service.dashboard.pages import as_csv, page
from tasks.synthetic import SURFACES, Descent, heights, largest_curvature, trajectory, updates

router = APIRouter(include_in_schema=False)

MAX_STEPS = 300
N_FREQUENCIES = 160
N_BETAS = 120
N_RESPONSE = 40
GRID = (64, 48)
N_LEVELS = 14
_AT_ONCE = BoundedSemaphore(2)  # each computes paths on a core of its own
_LONGEST_WAIT_S = 2.0

SLOW_STEPS: Mapping[str, str | float | None] = {
    "dynamic_0.8": "dynamic_0.8",
    "dynamic_0.5": "dynamic_0.5",
    "0.8": 0.8,
    "0.5": 0.5,
    "none": None,
}
"""Choices of η_t, the forward-looking part's step, by the name a form sends."""

SENSIBLE: Mapping[str, Mapping[str, float]] = {
    "quadratic": {"lr": 0.004, "adaptive_lr": 0.05, "n_steps": 100},
    "rosenbrock": {"lr": 0.0002, "adaptive_lr": 0.02, "n_steps": 300},
    "noisy_quadratic": {"lr": 0.02, "adaptive_lr": 0.05, "n_steps": 200},
}
"""Learning rates and lengths by surface with which most of the five converge."""

Decay = Annotated[float, Field(ge=0, le=0.999)]
Rate = Annotated[float, Field(gt=0, le=10)]


class Choice(Filters):
    """The settings that the explorer shows."""

    surface: Literal["quadratic", "rosenbrock", "noisy_quadratic"] = "quadratic"
    lambd: float = Field(default=0.9, ge=0.01, le=0.99)
    beta: Decay = Field(default=0.2, description="β of AdmetaS, and β1 of AdmetaR")
    ema_beta: Decay = Field(default=0.9, description="β of SGDM, and β1 of Adam and RAdam")
    lr: Rate = Field(default=0.004, description="of SGDM and AdmetaS")
    adaptive_lr: Rate = Field(default=0.05, description="of Adam, RAdam and AdmetaR")
    k: int = Field(default=6, ge=1, le=1000)
    slow_step: Literal["dynamic_0.8", "dynamic_0.5", "0.8", "0.5", "none"] = "dynamic_0.8"
    n_steps: int = Field(default=100, ge=1, le=MAX_STEPS)
    x: float | None = Field(default=None, ge=-10, le=10)
    y: float | None = Field(default=None, ge=-10, le=10)

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.x is None) != (self.y is None):
            raise ValueError("x and y are the start's coordinates: give both, or neither for the surface's own")
        return self

    @property
    def start(self) -> tuple[float, float]:
        """Where the paths begin."""
        return SURFACES[self.surface].start if self.x is None or self.y is None else (self.x, self.y)


def optimizers(choice: Choice) -> dict[str, tuple[str, dict[str, Any]]]:
    """The five, by title: registered name and settings. No weight decay, which would move the minimum."""
    admeta = {"lambd": choice.lambd, "k": choice.k, "slow_step": SLOW_STEPS[choice.slow_step], "weight_decay": 0.0}
    adam = {"lr": choice.adaptive_lr, "betas": [choice.ema_beta, 0.999], "weight_decay": 0.0}
    sgdm = {"lr": choice.lr, "momentum": choice.ema_beta, "nesterov": False, "weight_decay": 0.0}
    return {
        "SGDM": ("sgdm", sgdm),
        "AdmetaS": ("admetas", {"lr": choice.lr, "beta": choice.beta, **admeta}),
        "Adam": ("adam", adam),
        "RAdam": ("radam", adam),
        "AdmetaR": ("admetar", {"lr": choice.adaptive_lr, "betas": [choice.beta, 0.999], **admeta}),
    }


@lru_cache(maxsize=256)
def explore(choice: Choice) -> dict[str, Any]:
    """All that the explorer draws, as JSON values.

    Raises:
        ApiError: 429 while two other requests are computed.
    """
    with _turn():
        descents = {title: _descend(choice, *made) for title, made in optimizers(choice).items()}
        steps = _step_responses(choice)
    return {
        "surface": _surface(choice.surface),
        "start": choice.start,
        "descents": descents,
        "filter": _filter(choice),
        "response": steps,
        "stability": _stability(choice),
        "facts": _facts(choice),
    }


@contextmanager
def _turn() -> Iterator[None]:
    if not _AT_ONCE.acquire(timeout=_LONGEST_WAIT_S):
        raise ApiError(
            429,
            "explorer_busy",
            f"the explorer computes two requests at a time; this one waited {_LONGEST_WAIT_S:g} s.",
            hint="Try again in a second.",
            headers={"Retry-After": "1"},
        )
    try:
        yield
    finally:
        _AT_ONCE.release()


def _descend(choice: Choice, name: str, params: dict[str, Any]) -> dict[str, Any]:
    surface = SURFACES[choice.surface]
    start = [*choice.start, *[choice.start[1]] * (surface.dim - 2)]
    descent = Descent(surface, optimizer=name, params=params, seed=0, start=start)
    found = list(trajectory(descent, n_steps=choice.n_steps))
    return {
        "optimizer": name,
        "settings": params,
        "x": [_short(x) for x, _, _ in found],
        "y": [_short(y) for _, y, _ in found],
        "loss": [_short(loss) for *_, loss in found],
        "diverged_at": None if len(found) > choice.n_steps else len(found),
    }


@cache
def _surface(name: str) -> dict[str, Any]:
    surface = SURFACES[name]
    x_low, x_high, y_low, y_high = surface.window
    xs, ys = _between(x_low, x_high, GRID[0]), _between(y_low, y_high, GRID[1])
    values = heights(surface, xs, ys)
    most = max(value for row in values for value in row)
    return {
        "title": surface.title,
        "window": surface.window,
        "minimum": surface.minimum,
        "x": xs,
        "y": ys,
        "height": [[_short(value) for value in row] for row in values],
        "levels": [_short(most * (i / N_LEVELS) ** 3) for i in range(1, N_LEVELS)],
        "dim": surface.dim,
    }


def _filter(choice: Choice) -> dict[str, Any]:
    """Gains by frequency, all as the factor of a gradient in the step at learning rate 1."""
    omegas = [0.003 * (math.pi / 0.003) ** (i / (N_FREQUENCIES - 1)) for i in range(N_FREQUENCIES)]
    sgdm_gain = 1.0 / (1.0 - choice.ema_beta)  # its momentum is a sum; the average times this
    ema = [sgdm_gain * abs(ema_response(omega, choice.ema_beta)) for omega in omegas]
    dema = [abs(dema_response(omega, choice.lambd)) for omega in omegas]
    both = [abs(dema_response(w, choice.lambd) * ema_response(w, choice.beta)) for w in omegas]
    return {
        "omega": [_short(omega) for omega in omegas],
        "gain": {
            "SGDM's EMA": [_short(gain) for gain in ema],
            "DEMA alone": [_short(gain) for gain in dema],
            "AdmetaS": [_short(gain) for gain in both],
        },
    }


def _step_responses(choice: Choice) -> dict[str, Any]:
    """Updates at learning rate 1 after the gradient goes from 0 to 1, as a share of what they settle at."""
    known = optimizers(choice)
    gradients = [0.0] * 2 + [1.0] * N_RESPONSE
    final = {"SGDM": 1.0 / (1.0 - choice.ema_beta), "AdmetaS": dema_gain(choice.lambd)}
    found = {}
    for title, gain in final.items():
        name, params = known[title]
        no_lookahead = {"slow_step": None} if title == "AdmetaS" else {}
        found[title] = [
            _short(update / gain) for update in updates(name, {**params, **no_lookahead, "lr": 1.0}, gradients)
        ]
    return {"step": list(range(-2, N_RESPONSE)), "share": found}


def _stability(choice: Choice) -> dict[str, Any]:
    """The region of β and s = lr · curvature in which AdmetaS without lookahead converges, and the chosen point."""
    betas = [0.98 * i / (N_BETAS - 1) for i in range(N_BETAS)]
    curvature = largest_curvature(choice.surface)
    limit = stability_limit(1.0, choice.beta, choice.lambd)
    return {
        "beta": [_short(beta) for beta in betas],
        "limit": [_short(stability_limit(1.0, beta, choice.lambd)) for beta in betas],
        "cliff": _short(beta_cliff(choice.lambd)),
        "curvature": _short(curvature),
        "here": {"beta": choice.beta, "s": _short(choice.lr * curvature), "limit": _short(limit)},
        "stable": choice.lr * curvature < limit,
    }


def _facts(choice: Choice) -> dict[str, Any]:
    return {
        "dema_gain": _short(dema_gain(choice.lambd)),
        "noise_gain": _short(noise_gain(choice.lambd)),
        "sgdm_gain": _short(1.0 / (1.0 - choice.ema_beta)),
        "adam_equivalent_lr": _short(adam_equivalent_lr(choice.adaptive_lr, choice.lambd)),
        "largest_stable_lr": _short(
            stability_limit(1.0, choice.beta, choice.lambd) / largest_curvature(choice.surface)
        ),
    }


def _path_rows(found: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The paths as a table with a header."""
    yield ("optimizer", "step", "x", "y", "loss")
    for title, descent in found["descents"].items():
        for step, (x, y, loss) in enumerate(zip(descent["x"], descent["y"], descent["loss"], strict=True)):
            yield (title, step, x, y, loss)


def _between(low: float, high: float, n: int) -> list[float]:
    return [low + (high - low) * i / (n - 1) for i in range(n)]


def _short(number: float) -> float:
    """Five significant digits: a drawing shows no more."""
    return float(f"{number:.5g}")


class PageChoice(Choice):
    """What the page of the explorer begins with."""

    hide: list[str] = Field(default=[], max_length=100, description="Names of curves that are hidden.")


@router.get("/explorer")
def explorer_page(request: Request, choice: Annotated[PageChoice, Query()]) -> Response:
    """EMA against DEMA as a tool; the address holds the choice."""
    return page(
        request,
        "explorer.html",
        choice=choice,
        surfaces={name: (surface.title, SENSIBLE[name]) for name, surface in SURFACES.items()},
        slow_steps=list(SLOW_STEPS),
        titles=list(optimizers(choice)),
        max_steps=MAX_STEPS,
    )


@router.get("/explorer.json")
def get_explored(choice: Annotated[Choice, Query()]) -> Response:
    """Descents, gains, responses and the stable region."""
    return JSONResponse(explore(choice))


@router.get("/explorer.csv")
def get_descents(choice: Annotated[Choice, Query()]) -> Response:
    """The paths, a row for each step."""
    return as_csv(_path_rows(explore(choice)), name="explorer-descents")
