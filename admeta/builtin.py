"""The nine built-in optimizers: parameters, default search spaces, the paper's grids. Literal data.

Sources: Chen et al., ICML 2023, appendix "Hyperparameter Tuning" and its tables; torch.optim's defaults and
the optimizers' own papers where that paper prints none. Default spaces contain every value the paper
settled on for its own two optimizers, except AdmetaS's β = 0.4, which lies past the stability cliff
(admeta.theory). Imports no torch.
"""

# ruff: noqa: FBT003 - a positional True here is a value, not a switch

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from admeta.info import Derived, OptimInfo, Requirement, Source, parameters_with
from admeta.parameters import FloatDomain
from admeta.spaces import Categorical, Float
from admeta.theory import dema_gain

__all__ = ["BUILTIN"]

ADMETA = Source("Chen et al., Bidirectional Looking with A Novel Double Exponential Moving Average, ICML 2023",
                "https://proceedings.mlr.press/v202/chen23r.html")  # fmt: skip

_ADMETAR = parameters_with(
    lr=1e-2,
    betas=[0.9, 0.999],
    eps=1e-9,
    weight_decay=0.0,
    lambd=0.1,
    k=6,
    preset="default",
    dema="full",
    nu_scale=1.0,
    slow_step="dynamic_0.8",
    rectify=True,
    rho_min=5.0,
    unrectified="skip",
    gate_exp_avg_sq=False,
    raw_eps=False,
    decoupled_weight_decay=True,
    state_dtype="float32",
    rounding="nearest",
)  # fmt: skip
_ADMETAS = parameters_with(
    lr=1e-2,
    beta=0.2,
    lambd=0.9,
    k=6,
    weight_decay=0.0,
    preset="default",
    dema="full",
    nu_scale=1.0,
    slow_step="dynamic_0.8",
    decoupled_weight_decay=False,
    state_dtype="float32",
    rounding="nearest",
)  # fmt: skip
_RADAM = parameters_with(
    lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.0, decoupled_weight_decay=False
)  # fmt: skip
_RANGER = parameters_with(
    lr=1e-3,
    betas=[0.95, 0.999],
    eps=1e-5,
    weight_decay=0.0,
    k=6,
    slow_step=0.5,
    rho_min=5.0,
    unrectified="sgd",
    centralize=True,
    decoupled_weight_decay=True,
    state_dtype="float32",
    rounding="nearest",
)  # fmt: skip
_ADABELIEF = parameters_with(
    lr=1e-3,
    betas=[0.9, 0.999],
    eps=1e-16,
    weight_decay=0.0,
    rectify=True,
    rho_min=5.0,
    unrectified="sgd",
    decoupled_weight_decay=True,
    state_dtype="float32",
    rounding="nearest",
)  # fmt: skip

SCRATCH_ADAPTIVE = {"betas": [0.9, 0.999], "eps": 1e-9, "weight_decay": 1e-4}
FINETUNE_ADAPTIVE = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
PAPER_ADAPTIVE_LR = Categorical((0.1, 0.01, 0.001))
PAPER_SGD_LR = Categorical((0.01, 0.05, 0.1))
PAPER_FINETUNE_LR = Categorical((5e-5, 8e-5, 1e-4, 3e-4, 5e-4, 8e-4))


def _steady_gain(settings: Mapping[str, Any]) -> float:
    if "released" in (settings["dema"], settings["preset"]):
        raise ValueError("the released source has no steady state: it adds a constant in every step")
    return 1.0 if settings["dema"] == "off" else dema_gain(settings["lambd"])


STEADY_GAIN = Derived(
    doc="What a constant gradient of 1 becomes: (6 − λ)/(1 − λ), and 1 with dema 'off'; none as released.",
    of=("lambd", "dema", "preset"),
    value=_steady_gain,
)

BUILTIN: Mapping[str, OptimInfo] = {
    "admetar": OptimInfo(
        name="admetar",
        target="admeta.admetar:AdmetaR",
        width_rule="adam",
        title="AdmetaR",
        description="RAdam on a double exponential moving average of the gradients, and dynamic lookahead.",
        source=ADMETA,
        parameters=_ADMETAR,
        derived={"steady_gain": STEADY_GAIN},
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
        width_rule="sgd",
        title="AdmetaS",
        description="SGD along a momentum of the double exponential moving average, with dynamic lookahead.",
        source=ADMETA,
        parameters=_ADMETAS,
        derived={"steady_gain": STEADY_GAIN},
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
        width_rule="sgd",
        title="SGD",
        description="Stochastic gradient descent without momentum.",
        source=Source(
            "Robbins and Monro, A Stochastic Approximation Method, 1951",
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html",
        ),
        parameters=parameters_with(lr=1e-3, weight_decay=0.0),
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
        width_rule="sgd",
        title="SGD with Nesterov momentum",
        description="Stochastic gradient descent with momentum 0.9, Nesterov's form, as in the Admeta paper.",
        source=Source(
            "Sutskever et al., On the importance of initialization and momentum, ICML 2013",
            "https://proceedings.mlr.press/v28/sutskever13.html",
        ),
        parameters=parameters_with(lr=1e-3, momentum=0.9, dampening=0.0, nesterov=True, weight_decay=0.0),
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
        width_rule="adam",
        title="Adam",
        description="Adam; weight decay is added to the gradient (L2).",
        source=Source("Kingma and Ba, Adam, ICLR 2015", "https://arxiv.org/abs/1412.6980"),
        parameters=parameters_with(lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.0, amsgrad=False),
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
        width_rule="adam",
        title="AdamW",
        description="Adam with decoupled weight decay.",
        source=Source(
            "Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019",
            "https://arxiv.org/abs/1711.05101",
        ),
        parameters=parameters_with(lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=1e-2, amsgrad=False),
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
        width_rule="adam",
        title="RAdam",
        description="Adam with rectified variance.",
        source=Source(
            "Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, ICLR 2020",
            "https://arxiv.org/abs/1908.03265",
        ),
        parameters=_RADAM,
        default_space={"lr": Float(3e-4, 0.1, log=True)},
        fixed=SCRATCH_ADAPTIVE,
        finetune_space={"lr": Float(1e-5, 1e-3, log=True)},
        finetune_fixed=FINETUNE_ADAPTIVE,
        paper_spaces={"paper": {"lr": PAPER_ADAPTIVE_LR}, "paper_finetune": {"lr": PAPER_FINETUNE_LR}},
        graph_kwargs={"capturable": True},
        graph_target="admeta.adam:KernelRAdam",
    ),
    "ranger": OptimInfo(
        name="ranger",
        target="admeta.ranger:Ranger",
        width_rule="adam",
        title="Ranger",
        description="RAdam with constant lookahead and centralised gradients.",
        source=Source(
            "Wright, Ranger, 2019; Yong et al., Gradient Centralization, ECCV 2020",
            "https://github.com/lessw2020/Ranger-Deep-Learning-Optimizer",
        ),
        parameters=_RANGER,
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
        width_rule="adam",
        title="AdaBelief",
        description="Adam that divides by the gradient's deviation from its own moving average.",
        source=Source("Zhuang et al., AdaBelief Optimizer, NeurIPS 2020", "https://arxiv.org/abs/2010.07468"),
        parameters=_ADABELIEF,
        default_space={"lr": Float(1e-4, 0.03, log=True)},
        fixed={**SCRATCH_ADAPTIVE, "rectify": False, "decoupled_weight_decay": False},
        finetune_space={"lr": Float(1e-4, 2e-3, log=True)},
        finetune_fixed={**FINETUNE_ADAPTIVE, "rectify": False, "decoupled_weight_decay": False},
        paper_spaces={"paper": {"lr": PAPER_ADAPTIVE_LR}, "paper_finetune": {"lr": PAPER_FINETUNE_LR}},
        graph_kwargs={"capturable": True},
    ),
}
