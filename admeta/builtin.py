"""The nine built-in optimizers: parameters, default search spaces, the paper's grids. Literal data.

Sources: Chen et al., ICML 2023, appendix "Hyperparameter Tuning" and its tables; torch.optim's defaults and
the optimizers' own papers where that paper prints none. Default spaces contain every value the paper
settled on for its own two optimizers, except AdmetaS's β = 0.4, which lies past the stability cliff
(admeta.theory). Imports no torch.
"""

# ruff: noqa: FBT003 - a positional True here is a default, not a switch

from __future__ import annotations

from collections.abc import Mapping

from admeta.info import (
    AnyOf,
    BoolDomain,
    ChoiceDomain,
    Domain,
    FloatDomain,
    FloatsDomain,
    IntDomain,
    NoneDomain,
    OptimInfo,
    ParamInfo,
    Requirement,
    Source,
)
from admeta.presets import ADMETAR_PRESETS, ADMETAS_PRESETS, DEMA_FORMS, SLOW_STEPS, UNRECTIFIED_FORMS
from admeta.spaces import Categorical, Float

__all__ = ["OPTIMIZERS"]

POSITIVE = FloatDomain(low=0.0, low_open=True)
NON_NEGATIVE = FloatDomain(low=0.0)
DECAY = FloatDomain(low=0.0, high=1.0, high_open=True)
SLOW_STEP = AnyOf((ChoiceDomain(SLOW_STEPS), FloatDomain(low=0.0, high=1.0, low_open=True), NoneDomain("no lookahead")))


def _p(name: str, default: object, domain: Domain, doc: str) -> ParamInfo:
    return ParamInfo(name=name, default=default, domain=domain, doc=doc)


def _by_name(*infos: ParamInfo) -> dict[str, ParamInfo]:
    return {info.name: info for info in infos}


def _lr(default: float) -> ParamInfo:
    return _p("lr", default, POSITIVE, "learning rate")


def _betas(default: list[float]) -> ParamInfo:
    return _p("betas", default, FloatsDomain(2, DECAY), "decay rates of the first and second moment")


def _eps(default: float) -> ParamInfo:
    return _p("eps", default, NON_NEGATIVE, "added to the denominator")


def _weight_decay(default: float) -> ParamInfo:
    return _p("weight_decay", default, NON_NEGATIVE, "weight decay coefficient")


def _decoupled(default: object) -> ParamInfo:
    doc = "true: θ shrinks by lr·weight_decay; false: weight_decay·θ is added to the gradient"
    return _p("decoupled_weight_decay", default, BoolDomain(), doc)


LAMBD = FloatDomain(low=0.0, high=1.0, low_open=True, high_open=True)
LAMBD_DOC = "inner decay λ of the double exponential moving average"
K = _p("k", 6, IntDomain(low=1), "steps between synchronisations of fast and slow weights")
DEMA = _p(
    "dema",
    "full",
    ChoiceDomain(DEMA_FORMS),
    "h: the DEMA of the gradients, the gradient, or the released bug",
)
NU_SCALE = _p("nu_scale", 1.0, NON_NEGATIVE, "scale of the start-up term λ^t·g_1")
SLOW = _p("slow_step", "dynamic_0.8", SLOW_STEP, "η of the slow weights: a schedule, a constant, or no lookahead")
SLOW_HALF = _p("slow_step", 0.5, SLOW_STEP, SLOW.doc)
RECTIFY = _p("rectify", True, BoolDomain(), "RAdam's variance rectification")
RHO_MIN = _p("rho_min", 5.0, FloatDomain(low=4.0), "ρ_t from which steps are rectified")
UNRECTIFIED = _p("unrectified", "skip", ChoiceDomain(UNRECTIFIED_FORMS), "before that: no step, or θ − lr·m̂")
UNRECTIFIED_SGD = _p("unrectified", "sgd", ChoiceDomain(UNRECTIFIED_FORMS), UNRECTIFIED.doc)
GATE = _p("gate_exp_avg_sq", False, BoolDomain(), "leave v alone until steps are rectified")
MOMENTUM = DECAY
ADMETA = Source("Chen et al., Bidirectional Looking with A Novel Double Exponential Moving Average, ICML 2023",
                "https://proceedings.mlr.press/v202/chen23r.html")  # fmt: skip

SCRATCH_ADAPTIVE = {"betas": [0.9, 0.999], "eps": 1e-9, "weight_decay": 1e-4}
FINETUNE_ADAPTIVE = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
PAPER_ADAPTIVE_LR = Categorical((0.1, 0.01, 0.001))
PAPER_SGD_LR = Categorical((0.01, 0.05, 0.1))
PAPER_FINETUNE_LR = Categorical((5e-5, 8e-5, 1e-4, 3e-4, 5e-4, 8e-4))

OPTIMIZERS: Mapping[str, OptimInfo] = {
    "admetar": OptimInfo(
        name="admetar",
        target="admeta.admetar:AdmetaR",
        title="AdmetaR",
        description="RAdam on a double exponential moving average of the gradients, and dynamic lookahead.",
        source=ADMETA,
        parameters=_by_name(
            _lr(1e-3),
            _betas([0.9, 0.999]),
            _eps(1e-9),
            _weight_decay(0.0),
            _p("lambd", 0.1, LAMBD, LAMBD_DOC),
            K,
            _p("preset", "default", ChoiceDomain(tuple(ADMETAR_PRESETS)), "values of the options left out"),
            DEMA,
            NU_SCALE,
            SLOW,
            RECTIFY,
            RHO_MIN,
            UNRECTIFIED,
            GATE,
            _decoupled(True),
        ),
        default_space={"lr": Float(3e-3, 0.1, log=True), "lambd": Float(0.02, 0.4, log=True)},
        fixed=SCRATCH_ADAPTIVE,
        finetune_space={"lr": Float(5e-5, 2e-3, log=True), "lambd": Float(0.02, 0.4, log=True)},
        finetune_fixed={**FINETUNE_ADAPTIVE, "slow_step": "dynamic_0.5"},
        paper_spaces={
            "paper": {"lr": Categorical((0.1, 0.05, 0.01)), "lambd": Categorical((0.05, 0.1, 0.2, 0.3, 0.4))},
            "paper_finetune": {"lr": PAPER_FINETUNE_LR, "lambd": Categorical((0.05, 0.1, 0.2))},
        },
        graph_kwargs={"capturable": True},
    ),
    "admetas": OptimInfo(
        name="admetas",
        target="admeta.admetas:AdmetaS",
        title="AdmetaS",
        description="SGD along a momentum of the double exponential moving average, with dynamic lookahead.",
        source=ADMETA,
        parameters=_by_name(
            _lr(1e-3),
            _p("beta", 0.2, DECAY, "outer decay β"),
            _p("lambd", 0.9, LAMBD, LAMBD_DOC),
            K,
            _weight_decay(0.0),
            _p("preset", "default", ChoiceDomain(tuple(ADMETAS_PRESETS)), "values of the options left out"),
            DEMA,
            NU_SCALE,
            SLOW,
            _decoupled(False),
        ),
        default_space={"lr": Float(5e-3, 0.1, log=True), "beta": Float(0.1, 0.3)},
        fixed={"lambd": 0.9, "weight_decay": 1e-4},
        finetune_space={"lr": Float(1e-4, 1e-2, log=True), "beta": Float(0.1, 0.3)},
        finetune_fixed={"lambd": 0.9, "weight_decay": 0.0, "slow_step": "dynamic_0.5"},
        paper_spaces={
            "paper": {"lr": Categorical((0.01, 0.05, 0.1)), "beta": Categorical((0.1, 0.2, 0.3, 0.4))},
        },
        graph_kwargs={"capturable": True},
    ),
    "sgd": OptimInfo(
        name="sgd",
        target="torch.optim:SGD",
        title="SGD",
        description="Stochastic gradient descent without momentum.",
        source=Source(
            "Robbins and Monro, A Stochastic Approximation Method, 1951",
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html",
        ),
        parameters=_by_name(_lr(1e-3), _weight_decay(0.0)),
        default_space={"lr": Float(0.01, 0.5, log=True)},
        fixed={"weight_decay": 1e-4},
        finetune_space={"lr": Float(1e-3, 0.1, log=True)},
        finetune_fixed={"weight_decay": 0.0},
        paper_spaces={"paper": {"lr": PAPER_SGD_LR}},
        graph_kwargs={"fused": True},
    ),
    "sgdm": OptimInfo(
        name="sgdm",
        target="torch.optim:SGD",
        title="SGD with Nesterov momentum",
        description="Stochastic gradient descent with momentum 0.9, Nesterov's form, as in the Admeta paper.",
        source=Source(
            "Sutskever et al., On the importance of initialization and momentum, ICML 2013",
            "https://proceedings.mlr.press/v28/sutskever13.html",
        ),
        parameters=_by_name(
            _lr(1e-3),
            _p("momentum", 0.9, MOMENTUM, "momentum"),
            _p("dampening", 0.0, DECAY, "dampening of momentum"),
            _p("nesterov", True, BoolDomain(), "Nesterov's form (needs dampening 0)"),
            _weight_decay(0.0),
        ),
        default_space={"lr": Float(5e-3, 0.5, log=True)},
        fixed={"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4},
        finetune_space={"lr": Float(1e-4, 0.05, log=True)},
        finetune_fixed={"momentum": 0.9, "nesterov": True, "weight_decay": 0.0},
        paper_spaces={"paper": {"lr": PAPER_SGD_LR}},
        constructor_kwargs={"momentum": 0.9, "nesterov": True},
        graph_kwargs={"fused": True},
        requirements=(
            Requirement("nesterov", True, "momentum", FloatDomain(0.0, low_open=True)),
            Requirement("nesterov", True, "dampening", FloatDomain(0.0, 0.0)),
        ),
    ),
    "adam": OptimInfo(
        name="adam",
        target="torch.optim:Adam",
        title="Adam",
        description="Adam; weight decay is added to the gradient (L2).",
        source=Source("Kingma and Ba, Adam, ICLR 2015", "https://arxiv.org/abs/1412.6980"),
        parameters=_by_name(
            _lr(1e-3),
            _betas([0.9, 0.999]),
            _eps(1e-8),
            _weight_decay(0.0),
            _p("amsgrad", False, BoolDomain(), "AMSGrad's maximum of v"),
        ),
        default_space={"lr": Float(1e-4, 3e-2, log=True)},
        fixed=SCRATCH_ADAPTIVE,
        finetune_space={"lr": Float(1e-5, 5e-4, log=True)},
        finetune_fixed=FINETUNE_ADAPTIVE,
        paper_spaces={"paper": {"lr": PAPER_ADAPTIVE_LR}},
        graph_kwargs={"fused": True, "capturable": True},
        graph_target="admeta.adam:KernelAdam",
        graph_target_lacks=("amsgrad",),
    ),
    "adamw": OptimInfo(
        name="adamw",
        target="torch.optim:AdamW",
        title="AdamW",
        description="Adam with decoupled weight decay.",
        source=Source(
            "Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019",
            "https://arxiv.org/abs/1711.05101",
        ),
        parameters=_by_name(
            _lr(1e-3),
            _betas([0.9, 0.999]),
            _eps(1e-8),
            _weight_decay(1e-2),
            _p("amsgrad", False, BoolDomain(), "AMSGrad's maximum of v"),
        ),
        default_space={"lr": Float(1e-4, 3e-2, log=True), "weight_decay": Float(1e-4, 0.1, log=True)},
        fixed={"betas": [0.9, 0.999], "eps": 1e-8},
        finetune_space={"lr": Float(1e-5, 2e-4, log=True)},
        finetune_fixed=FINETUNE_ADAPTIVE,
        paper_spaces={"paper": {"lr": PAPER_ADAPTIVE_LR}, "paper_finetune": {"lr": PAPER_FINETUNE_LR}},
        graph_kwargs={"fused": True, "capturable": True},
        graph_target="admeta.adam:KernelAdamW",
        graph_target_lacks=("amsgrad",),
    ),
    "radam": OptimInfo(
        name="radam",
        target="torch.optim:RAdam",
        title="RAdam",
        description="Adam with rectified variance.",
        source=Source(
            "Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, ICLR 2020",
            "https://arxiv.org/abs/1908.03265",
        ),
        parameters=_by_name(_lr(1e-3), _betas([0.9, 0.999]), _eps(1e-8), _weight_decay(0.0), _decoupled(False)),
        default_space={"lr": Float(3e-4, 0.1, log=True)},
        fixed=SCRATCH_ADAPTIVE,
        finetune_space={"lr": Float(1e-5, 1e-3, log=True)},
        finetune_fixed=FINETUNE_ADAPTIVE,
        paper_spaces={"paper": {"lr": PAPER_ADAPTIVE_LR}, "paper_finetune": {"lr": PAPER_FINETUNE_LR}},
        graph_kwargs={"capturable": True},
        graph_target="admeta.radam:KernelRAdam",
    ),
    "ranger": OptimInfo(
        name="ranger",
        target="admeta.ranger:Ranger",
        title="Ranger",
        description="RAdam with constant lookahead and centralised gradients.",
        source=Source(
            "Wright, Ranger, 2019; Yong et al., Gradient Centralization, ECCV 2020",
            "https://github.com/lessw2020/Ranger-Deep-Learning-Optimizer",
        ),
        parameters=_by_name(
            _lr(1e-3),
            _betas([0.95, 0.999]),
            _eps(1e-5),
            _weight_decay(0.0),
            K,
            SLOW_HALF,
            RHO_MIN,
            UNRECTIFIED_SGD,
            _p(
                "centralize",
                True,
                BoolDomain(),
                "subtract from each matrix or filter gradient its mean by row",
            ),
            _decoupled(True),
        ),
        default_space={"lr": Float(3e-4, 0.1, log=True)},
        fixed={"betas": [0.9, 0.999], "eps": 1e-9, "weight_decay": 1e-4},
        finetune_space={"lr": Float(2e-5, 2e-3, log=True)},
        finetune_fixed=FINETUNE_ADAPTIVE,
        paper_spaces={"paper": {"lr": PAPER_ADAPTIVE_LR}, "paper_finetune": {"lr": PAPER_FINETUNE_LR}},
        graph_kwargs={"capturable": True},
    ),
    "adabelief": OptimInfo(
        name="adabelief",
        target="admeta.adabelief:AdaBelief",
        title="AdaBelief",
        description="Adam that divides by the gradient's deviation from its own moving average.",
        source=Source("Zhuang et al., AdaBelief Optimizer, NeurIPS 2020", "https://arxiv.org/abs/2010.07468"),
        parameters=_by_name(
            _lr(1e-3),
            _betas([0.9, 0.999]),
            _eps(1e-16),
            _weight_decay(0.0),
            _p("rectify", True, BoolDomain(), RECTIFY.doc),
            RHO_MIN,
            UNRECTIFIED_SGD,
            _decoupled(True),
        ),
        default_space={"lr": Float(1e-4, 0.03, log=True)},
        fixed={**SCRATCH_ADAPTIVE, "rectify": False, "decoupled_weight_decay": False},
        finetune_space={"lr": Float(1e-4, 2e-3, log=True)},
        finetune_fixed={**FINETUNE_ADAPTIVE, "rectify": False, "decoupled_weight_decay": False},
        paper_spaces={"paper": {"lr": PAPER_ADAPTIVE_LR}, "paper_finetune": {"lr": PAPER_FINETUNE_LR}},
        graph_kwargs={"capturable": True},
    ),
}
