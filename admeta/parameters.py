"""The rules of the optimizers' parameters, in one table, and the presets over them.

Constructors and the registry check values by this table, so each rule is only here. Imports no torch.
Source of the presets: Chen et al., ICML 2023, Algorithms 1 and 2; the authors' compiled files and released source.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = [
    "ADMETAR_PRESETS", "ADMETAS_PRESETS", "PARAMETERS", "AnyOf", "BoolDomain", "ChoiceDomain", "DemaForm", "Domain",
    "FloatDomain", "FloatsDomain", "FromPreset", "IntDomain", "NoneDomain", "Parameter", "Preset", "Rounding",
    "SlowStep", "StateDtype", "UnrectifiedForm", "check_option",
]  # fmt: skip

Preset = Literal["default", "paper", "paper_finetune", "authors", "released"]
DemaForm = Literal["full", "off", "released"]
SlowStep = Literal["dynamic_0.8", "dynamic_0.5"]
UnrectifiedForm = Literal["skip", "sgd"]
StateDtype = Literal["float32", "bfloat16"]
Rounding = Literal["nearest", "stochastic"]


@dataclass(frozen=True)
class FloatDomain:
    """A finite real number between two bounds; an open bound is itself excluded."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def accepts(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return False
        try:
            number = float(value)
        except OverflowError:  # an integer beyond a float's range
            return False
        if not math.isfinite(number):
            return False
        above = number > self.low if self.low_open else number >= self.low
        below = number < self.high if self.high_open else number <= self.high
        return above and below

    def rule(self) -> str:
        if self.low == self.high:
            return f"{self.low:g}"
        left = "(" if self.low_open or math.isinf(self.low) else "["
        right = ")" if self.high_open or math.isinf(self.high) else "]"
        low = "−∞" if math.isinf(self.low) else f"{self.low:g}"
        high = "∞" if math.isinf(self.high) else f"{self.high:g}"
        return f"a finite number in {left}{low}, {high}{right}"


@dataclass(frozen=True)
class IntDomain:
    """A whole number in [low, high]; ``high`` None means no upper bound."""

    low: int = 0
    high: int | None = None

    def accepts(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            return False
        return int(value) >= self.low and (self.high is None or int(value) <= self.high)

    def rule(self) -> str:
        return f"a whole number ≥ {self.low}" + ("" if self.high is None else f" and ≤ {self.high}")


@dataclass(frozen=True)
class BoolDomain:
    """true or false."""

    def accepts(self, value: object) -> bool:
        return isinstance(value, bool)

    def rule(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class ChoiceDomain:
    """One of a fixed list of strings."""

    choices: tuple[str, ...]

    def accepts(self, value: object) -> bool:
        return isinstance(value, str) and value in self.choices

    def rule(self) -> str:
        return "one of " + ", ".join(repr(choice) for choice in self.choices)


@dataclass(frozen=True)
class FloatsDomain:
    """A list of ``length`` numbers, each from ``each``."""

    length: int
    each: FloatDomain

    def accepts(self, value: object) -> bool:
        if not isinstance(value, list | tuple) or len(value) != self.length:
            return False
        return all(self.each.accepts(item) for item in value)

    def rule(self) -> str:
        return f"a list of {self.length} numbers, each {self.each.rule()}"


@dataclass(frozen=True)
class NoneDomain:
    """null alone; ``meaning`` says what it switches off."""

    meaning: str

    def accepts(self, value: object) -> bool:
        return value is None

    def rule(self) -> str:
        return f"null ({self.meaning})"


@dataclass(frozen=True)
class AnyOf:
    """A value from any of several domains."""

    domains: tuple[FloatDomain | IntDomain | BoolDomain | ChoiceDomain | FloatsDomain | NoneDomain, ...]

    def accepts(self, value: object) -> bool:
        return any(domain.accepts(value) for domain in self.domains)

    def rule(self) -> str:
        return ", or ".join(domain.rule() for domain in self.domains)


Domain = FloatDomain | IntDomain | BoolDomain | ChoiceDomain | FloatsDomain | NoneDomain | AnyOf

_POSITIVE = FloatDomain(low=0.0, low_open=True)
_NON_NEGATIVE = FloatDomain(low=0.0)
_DECAY = FloatDomain(low=0.0, high=1.0, high_open=True)
_SLOW_STEP = AnyOf(
    (ChoiceDomain(get_args(SlowStep)), FloatDomain(low=0.0, high=1.0, low_open=True), NoneDomain("no lookahead"))
)


@dataclass(frozen=True)
class Parameter:
    """What a constructor keyword means and which values it takes, wherever it occurs.

    Attributes:
        domain: the values a constructor takes.
        doc: what it does.
        label: its name in a constructor's message; torch's own where torch has the parameter.
        study_domain: the values a study takes, where they are fewer.
    """

    domain: Domain
    doc: str
    label: str = ""
    study_domain: Domain | None = None


PARAMETERS: Mapping[str, Parameter] = {
    # A schedule may begin at a rate of 0; a study that holds it there trains nothing.
    "lr": Parameter(_NON_NEGATIVE, "learning rate", "learning rate", study_domain=_POSITIVE),
    "betas": Parameter(FloatsDomain(2, _DECAY), "decay rates of the first and second moment"),
    "eps": Parameter(_NON_NEGATIVE, "added to the denominator", "epsilon value"),
    "weight_decay": Parameter(_NON_NEGATIVE, "weight decay coefficient"),
    "beta": Parameter(_DECAY, "outer decay β"),
    "lambd": Parameter(
        FloatDomain(low=0.0, high=1.0, low_open=True, high_open=True),
        "inner decay λ of the double exponential moving average",
    ),
    "k": Parameter(IntDomain(low=1), "steps between synchronisations of fast and slow weights"),
    "preset": Parameter(ChoiceDomain(get_args(Preset)), "values of the options left out"),
    "dema": Parameter(
        ChoiceDomain(get_args(DemaForm)), "h: the DEMA of the gradients, the gradient, or the released bug"
    ),
    "nu_scale": Parameter(_NON_NEGATIVE, "scale of the start-up term λ^t·g_1"),
    "slow_step": Parameter(_SLOW_STEP, "η of the slow weights: a schedule, a constant, or no lookahead"),
    "rectify": Parameter(BoolDomain(), "RAdam's variance rectification"),
    "rho_min": Parameter(FloatDomain(low=4.0), "ρ_t from which steps are rectified"),
    "unrectified": Parameter(ChoiceDomain(get_args(UnrectifiedForm)), "before that: no step, or θ − lr·m̂"),
    "gate_exp_avg_sq": Parameter(BoolDomain(), "leave v alone until steps are rectified"),
    "raw_eps": Parameter(BoolDomain(), "true: eps is added to √v before its bias correction; false: to √v̂"),
    "decoupled_weight_decay": Parameter(
        BoolDomain(), "true: θ shrinks by lr·weight_decay; false: weight_decay·θ is added to the gradient"
    ),
    "centralize": Parameter(BoolDomain(), "subtract from each matrix or filter gradient its mean by row"),
    "state_dtype": Parameter(
        ChoiceDomain(get_args(StateDtype)), "dtype of the state: at least float32, or bfloat16 at half the memory"
    ),
    "rounding": Parameter(ChoiceDomain(get_args(Rounding)), "how bfloat16 parameters are rounded after an update"),
    "amsgrad": Parameter(BoolDomain(), "AMSGrad's maximum of v"),
    "momentum": Parameter(_DECAY, "momentum"),
    "dampening": Parameter(_DECAY, "dampening of momentum"),
    "nesterov": Parameter(BoolDomain(), "Nesterov's form (needs dampening 0)"),
    # Of the baselines from other libraries (admeta.baselines), under the names of their constructors.
    "alpha": Parameter(_NON_NEGATIVE, "weight of the slow moving average of the gradient"),
    "beta3": Parameter(AnyOf((_DECAY, NoneDomain("√β2"))), "decay of the distance's estimate"),
    "clip_threshold": Parameter(_POSITIVE, "root mean square above which an update is scaled down"),
    "d0": Parameter(_POSITIVE, "first estimate of the distance to the solution"),
    "d_coef": Parameter(_POSITIVE, "factor on the estimated learning rate"),
    "eps1": Parameter(_NON_NEGATIVE, "added to squared gradients"),
    "eps2": Parameter(_NON_NEGATIVE, "added to squared residuals of the update"),
    "gamma": Parameter(_NON_NEGATIVE, "scale of the variance reduction"),
    "lr_1d": Parameter(_POSITIVE, "learning rate of one-dimensional parameters, which AdamW moves"),
    "matrix_eps": Parameter(_POSITIVE, "initial diagonal of the preconditioners"),
    "max_grad_norm": Parameter(_NON_NEGATIVE, "2-norm to which the gradient is clipped; 0: it is not"),
    "max_precondition_dim": Parameter(IntDomain(low=1), "largest dimension that has a preconditioner"),
    "momentum_decay": Parameter(_NON_NEGATIVE, "decay ψ of the momentum's schedule"),
    "ns_steps": Parameter(IntDomain(low=1), "Newton-Schulz iterations"),
    "precondition_frequency": Parameter(IntDomain(low=1), "steps between updates of the eigenbases"),
    "preconditioning_compute_steps": Parameter(IntDomain(low=1), "steps between the preconditioners' inverse roots"),
    "r": Parameter(_NON_NEGATIVE, "power of the step in the weights of the average"),
    "safeguard_warmup": Parameter(BoolDomain(), "leave lr out of the distance's denominator, for warm-ups"),
    "t_alpha_beta3": Parameter(
        AnyOf((FloatDomain(low=1.0), NoneDomain("no warm-up"))), "steps over which alpha and β3 rise to their values"
    ),
    "use_adjusted_lr": Parameter(
        BoolDomain(), "true: lr × 0.2·√max(rows, columns), AdamW's size of updates; false: × √(rows/columns) if above 1"
    ),
    "warmup_steps": Parameter(
        IntDomain(low=0), "steps over which lr rises linearly, in addition to the task's schedule"
    ),
    "weight_decouple": Parameter(
        BoolDomain(), "true: θ shrinks by lr·weight_decay; false: weight_decay·θ is added to the gradient"
    ),
    "weight_lr_power": Parameter(_NON_NEGATIVE, "power of the largest lr so far in the weights of the average"),
}


def check_option(name: str, value: object) -> None:
    """Refuses a constructor's or a group's value outside its domain; names without a rule are let through.

    Raises:
        ValueError: with torch's message where torch has the parameter, and the rule.
    """
    parameter = PARAMETERS.get(name)
    if parameter is None or parameter.domain.accepts(value):
        return
    domain = parameter.domain
    if isinstance(domain, FloatsDomain) and isinstance(value, list | tuple) and len(value) == domain.length:
        index, item = next((i, item) for i, item in enumerate(value) if not domain.each.accepts(item))
        raise ValueError(f"Invalid beta parameter at index {index}: {item!r}; it must be {domain.each.rule()}")
    raise ValueError(f"Invalid {parameter.label or f'{name} value'}: {value!r}; it must be {domain.rule()}")


@dataclass(frozen=True)
class FromPreset:
    """The default of an option that ``preset`` may decide; ``value`` is what preset "default" gives it."""

    value: object

    def __repr__(self) -> str:
        return f"{self.value!r} or the preset's"


_SCALE_10 = {"nu_scale": 10.0}
_AS_BOXED = {"rho_min": 4.0, "unrectified": "sgd", "gate_exp_avg_sq": True}

# Options of each preset that differ from the constructor's defaults.
ADMETAS_PRESETS: Mapping[str, Mapping[str, object]] = {
    "default": {},
    "paper": {},
    "paper_finetune": {"slow_step": "dynamic_0.5"},
    "authors": _SCALE_10,
    # The scalar μ of the released source is a bug (every coordinate drifts); kept for replication only.
    "released": {**_SCALE_10, "dema": "released"},
}
ADMETAR_PRESETS: Mapping[str, Mapping[str, object]] = {
    "default": {},
    "paper": _AS_BOXED,
    "paper_finetune": {**_AS_BOXED, "slow_step": "dynamic_0.5"},
    "authors": {**_SCALE_10, "slow_step": 0.5, "raw_eps": True},
    "released": {**_SCALE_10, "dema": "released", "rectify": False, "raw_eps": True},
}
