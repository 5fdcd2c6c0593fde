"""The baselines of today, from torch and pytorch-optimizer: parameters, search spaces and where these come from.

Literal data; none of the update rules is ours. A space spans what the optimizer's paper or its authors' code searched
or recommends (`source`), widened to both sides where they name one value. Imports no torch.

pytorch-optimizer (Apache-2.0) is needed to construct them, not to read this list; `admeta-search[server]` brings it.
"""

from __future__ import annotations

from collections.abc import Mapping

from admeta.info import OptimInfo, Source, of_others, parameters_with
from admeta.spaces import Categorical, Float

__all__ = ["BASELINES"]

_ADAMW = parameters_with(lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=1e-2, amsgrad=False)
_OTHERS_FIXED = {"others.betas": [0.9, 0.95], "others.eps": 1e-10, "others.weight_decay": 0.0}
"""Of AdamW next to Muon: Jordan et al., Muon, the authors' `SingleDeviceMuonWithAuxAdam`."""

BASELINES: Mapping[str, OptimInfo] = {
    "muon": OptimInfo(
        name="muon",
        target="pytorch_optimizer:Muon",
        width_rule="muon",
        title="Muon",
        description="Momentum whose updates of hidden matrices are orthogonalised; AdamW moves the other parameters.",
        source=Source(
            "Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024",
            "https://kellerjordan.github.io/posts/muon/",
        ),
        parameters={
            **parameters_with(
                lr=2e-2, momentum=0.95, weight_decay=0.0, nesterov=True, ns_steps=5, use_adjusted_lr=False
            ),
            **of_others(_ADAMW),
        },
        others="adamw",
        group_options={"use_muon": True},
        default_space={"lr": Float(2e-3, 0.1, log=True), "others.lr": Float(1e-4, 1e-2, log=True)},
        fixed={"momentum": 0.95, "weight_decay": 0.0, **_OTHERS_FIXED},
        finetune_space={"lr": Float(1e-4, 1e-2, log=True), "others.lr": Float(1e-5, 5e-4, log=True)},
        finetune_fixed={"momentum": 0.95, "weight_decay": 0.0, **_OTHERS_FIXED},
        note="convolutions are flattened to (filters, the rest); torch.optim:Muon takes 2-D matrices alone",
    ),
    "soap": OptimInfo(
        name="soap",
        target="pytorch_optimizer:SOAP",
        title="SOAP",
        description="Adam in the slowly moving eigenbases of Shampoo's preconditioners.",
        source=Source(
            "Vyas et al., SOAP: Improving and Stabilizing Shampoo using Adam, ICLR 2025",
            "https://arxiv.org/abs/2409.11321",
        ),
        parameters=parameters_with(
            lr=3e-3,
            betas=[0.95, 0.95],
            eps=1e-8,
            weight_decay=1e-2,
            precondition_frequency=10,
            max_precondition_dim=10000,
        ),
        default_space={"lr": Float(3e-4, 3e-2, log=True)},
        fixed={"betas": [0.95, 0.95], "precondition_frequency": 10, "weight_decay": 1e-4},
        finetune_space={"lr": Float(1e-5, 1e-3, log=True)},
        finetune_fixed={"betas": [0.95, 0.95], "precondition_frequency": 10, "weight_decay": 0.0},
        note="its first step sets up the eigenbases and moves nothing",
    ),
    "shampoo": OptimInfo(
        name="shampoo",
        target="pytorch_optimizer:Shampoo",
        title="Shampoo",
        description="Preconditioners for each dimension of the hidden matrices; AdamW moves the other parameters.",
        source=Source(
            "Gupta et al., Shampoo: Preconditioned Stochastic Tensor Optimization, ICML 2018",
            "https://arxiv.org/abs/1802.09568",
        ),
        parameters={
            **parameters_with(lr=1e-3, weight_decay=0.0, matrix_eps=1e-6, preconditioning_compute_steps=1),
            **of_others(_ADAMW),
        },
        others="adamw",
        default_space={"lr": Float(1e-2, 1.0, log=True), "others.lr": Float(1e-4, 1e-2, log=True)},
        fixed={"matrix_eps": 1e-4, "preconditioning_compute_steps": 10, "others.weight_decay": 0.0},
        finetune_space={"lr": Float(1e-3, 0.1, log=True), "others.lr": Float(1e-5, 5e-4, log=True)},
        finetune_fixed={"matrix_eps": 1e-4, "preconditioning_compute_steps": 10, "others.weight_decay": 0.0},
        note="the paper's plain form, without blocks or grafting, for weights up to some 4,096 a side; the library's "
        "momentum, which feeds preconditioned gradients back into the statistics, diverges and is left out",
    ),
    "ademamix": OptimInfo(
        name="ademamix",
        target="pytorch_optimizer:AdEMAMix",
        width_rule="adam",
        title="AdEMAMix",
        description="AdamW with a fast and a slow moving average of the gradient.",
        source=Source(
            "Pagliardini et al., The AdEMAMix Optimizer: Better, Faster, Older, ICLR 2025",
            "https://arxiv.org/abs/2409.03137",
        ),
        parameters=parameters_with(
            lr=1e-3,
            betas=[0.9, 0.999, 0.9999],
            alpha=5.0,
            t_alpha_beta3=None,
            eps=1e-8,
            weight_decay=0.0,
            weight_decouple=True,
        ),
        constructor_kwargs={"weight_decouple": True},
        default_space={"lr": Float(1e-4, 1e-2, log=True), "alpha": Float(2.0, 10.0)},
        fixed={"betas": [0.9, 0.999, 0.9999], "weight_decay": 1e-4},
        finetune_space={"lr": Float(1e-5, 5e-4, log=True), "alpha": Float(2.0, 10.0)},
        finetune_fixed={"betas": [0.9, 0.999, 0.9999], "weight_decay": 0.0},
        note="the slow average (β3 = 0.9999) gathers over some 10,000 steps; in short runs lower betas[2]",
    ),
    "adopt": OptimInfo(
        name="adopt",
        target="pytorch_optimizer:ADOPT",
        width_rule="adam",
        title="ADOPT",
        description="Adam that divides by the second moment before the current gradient, and clips.",
        source=Source(
            "Taniguchi et al., ADOPT: Modified Adam Can Converge with Any β2 with the Optimal Rate, NeurIPS 2024",
            "https://arxiv.org/abs/2411.02853",
        ),
        parameters=parameters_with(lr=1e-3, betas=[0.9, 0.9999], eps=1e-6, weight_decay=0.0, weight_decouple=True),
        constructor_kwargs={"weight_decouple": True},
        default_space={"lr": Float(1e-4, 3e-2, log=True)},
        fixed={"betas": [0.9, 0.9999], "eps": 1e-6, "weight_decay": 1e-4},
        finetune_space={"lr": Float(1e-5, 5e-4, log=True)},
        finetune_fixed={"betas": [0.9, 0.9999], "eps": 1e-6, "weight_decay": 0.0},
        note="its first step sets up the second moment and moves nothing",
    ),
    "mars": OptimInfo(
        name="mars",
        target="pytorch_optimizer:MARS",
        width_rule="adam",
        title="MARS-AdamW",
        description="AdamW on variance-reduced gradients; plain AdamW moves one-dimensional parameters.",
        source=Source(
            "Yuan et al., MARS: Unleashing the Power of Variance Reduction for Training Large Models, ICML 2025",
            "https://arxiv.org/abs/2411.10438",
        ),
        parameters=parameters_with(lr=3e-3, lr_1d=3e-3, betas=[0.95, 0.99], gamma=0.025, eps=1e-8, weight_decay=0.0),
        default_space={"lr": Float(3e-4, 3e-2, log=True)},
        fixed={"betas": [0.95, 0.99], "gamma": 0.025, "weight_decay": 1e-4},
        finetune_space={"lr": Float(1e-5, 1e-3, log=True)},
        finetune_fixed={"betas": [0.95, 0.99], "gamma": 0.025, "weight_decay": 0.0, "lr_1d": 1e-4},
        note="the approximate form, with the previous step's gradient: one backward pass a step",
    ),
    "schedulefree": OptimInfo(
        name="schedulefree",
        target="pytorch_optimizer:ScheduleFreeAdamW",
        width_rule="adam",
        title="Schedule-Free AdamW",
        description="AdamW that averages its iterates in place of a schedule.",
        source=Source("Defazio et al., The Road Less Scheduled, NeurIPS 2024", "https://arxiv.org/abs/2405.15682"),
        parameters=parameters_with(
            lr=2.5e-3,
            betas=[0.9, 0.999],
            eps=1e-8,
            weight_decay=0.0,
            warmup_steps=0,
            r=0.0,
            weight_lr_power=2.0,
        ),
        default_space={"lr": Float(5e-4, 3e-2, log=True), "betas": Categorical(([0.9, 0.999], [0.95, 0.999]))},
        fixed={"weight_decay": 1e-4},
        finetune_space={"lr": Float(2e-5, 2e-3, log=True)},
        finetune_fixed={"betas": [0.9, 0.999], "weight_decay": 0.0},
        note="give the task `schedule: constant`; batch norm's statistics are those of the training weights",
    ),
    "prodigy": OptimInfo(
        name="prodigy",
        target="pytorch_optimizer:Prodigy",
        title="Prodigy",
        description="AdamW that estimates its learning rate from the distance travelled.",
        source=Source(
            "Mishchenko and Defazio, Prodigy: An Expeditiously Adaptive Parameter-Free Learner, ICML 2024",
            "https://arxiv.org/abs/2306.06101",
        ),
        parameters=parameters_with(
            lr=1.0,
            betas=[0.9, 0.999],
            beta3=None,
            d0=1e-6,
            d_coef=1.0,
            eps=1e-8,
            weight_decay=0.0,
            safeguard_warmup=False,
        ),
        default_space={"d_coef": Float(0.25, 4.0, log=True)},
        fixed={"lr": 1.0, "safeguard_warmup": True, "weight_decay": 1e-4},
        finetune_space={"d_coef": Float(0.25, 4.0, log=True)},
        finetune_fixed={"lr": 1.0, "safeguard_warmup": True, "weight_decay": 0.0},
        note="keep lr at 1: the schedule alone moves it; it reads one number from the device a step",
    ),
    "lion": OptimInfo(
        name="lion",
        target="pytorch_optimizer:Lion",
        width_rule="adam",
        title="Lion",
        description="The sign of an interpolated momentum.",
        source=Source(
            "Chen et al., Symbolic Discovery of Optimization Algorithms, NeurIPS 2023",
            "https://arxiv.org/abs/2302.06675",
        ),
        parameters=parameters_with(lr=1e-4, betas=[0.9, 0.99], weight_decay=0.0),
        default_space={"lr": Float(3e-5, 3e-3, log=True), "weight_decay": Float(1e-3, 1.0, log=True)},
        fixed={"betas": [0.9, 0.99]},
        finetune_space={"lr": Float(1e-6, 1e-4, log=True)},
        finetune_fixed={"betas": [0.9, 0.99], "weight_decay": 0.0},
        note="its paper's lr is a third to a tenth of AdamW's, and weight decay as many times larger",
    ),
    "adan": OptimInfo(
        name="adan",
        target="pytorch_optimizer:Adan",
        width_rule="adam",
        title="Adan",
        description="Adam with Nesterov's momentum by differences of gradients.",
        source=Source(
            "Xie et al., Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep Models, TPAMI 2024",
            "https://arxiv.org/abs/2208.06677",
        ),
        parameters=parameters_with(lr=1e-3, betas=[0.98, 0.92, 0.99], eps=1e-8, weight_decay=0.0, max_grad_norm=0.0),
        default_space={"lr": Float(3e-4, 3e-2, log=True)},
        fixed={"betas": [0.98, 0.92, 0.99], "weight_decay": 1e-4},
        finetune_space={"lr": Float(1e-5, 1e-3, log=True)},
        finetune_fixed={"betas": [0.98, 0.92, 0.99], "weight_decay": 0.0},
        note="weight decay is proximal, θ/(1 + lr·weight_decay), as in the paper",
    ),
    "nadamw": OptimInfo(
        name="nadamw",
        target="torch.optim:NAdam",
        width_rule="adam",
        title="NAdamW",
        description="AdamW with Nesterov's momentum.",
        source=Source(
            "Dozat, Incorporating Nesterov Momentum into Adam, 2016; Dahl et al., Benchmarking Neural Network Training "
            "Algorithms (AlgoPerf), 2023",
            "https://arxiv.org/abs/2306.07179",
        ),
        parameters=parameters_with(
            lr=2e-3,
            betas=[0.9, 0.999],
            eps=1e-8,
            weight_decay=0.0,
            momentum_decay=4e-3,
            decoupled_weight_decay=True,
        ),
        constructor_kwargs={"decoupled_weight_decay": True},
        default_space={"lr": Float(1e-4, 3e-2, log=True), "weight_decay": Float(1e-4, 0.1, log=True)},
        fixed={"betas": [0.9, 0.999], "eps": 1e-8},
        finetune_space={"lr": Float(1e-5, 2e-4, log=True)},
        finetune_fixed={"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
        graph_kwargs={"capturable": True},
    ),
    "came": OptimInfo(
        name="came",
        target="pytorch_optimizer:CAME",
        width_rule="adam",
        title="CAME",
        description="Factored second moments as Adafactor's, guided by the confidence in each update.",
        source=Source(
            "Luo et al., CAME: Confidence-guided Adaptive Memory Efficient Optimization, ACL 2023",
            "https://arxiv.org/abs/2307.02047",
        ),
        parameters=parameters_with(
            lr=2e-4,
            betas=[0.9, 0.999, 0.9999],
            eps1=1e-30,
            eps2=1e-16,
            clip_threshold=1.0,
            weight_decay=0.0,
        ),
        default_space={"lr": Float(3e-5, 1e-2, log=True)},
        fixed={"betas": [0.9, 0.999, 0.9999], "weight_decay": 1e-4},
        finetune_space={"lr": Float(1e-5, 5e-4, log=True)},
        finetune_fixed={"betas": [0.9, 0.999, 0.9999], "weight_decay": 0.0},
    ),
}
