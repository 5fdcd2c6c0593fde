"""The torch optimizer around the update rule: groups, state, choice of implementation, checkpoints.

Owns: what AdmetaR, AdmetaS, Ranger, AdaBelief and torch's optimizers by our kernels share as
``torch.optim.Optimizer``s, and ``decay_groups``. Does not own: their options (one module each) and the update
(admeta.rule, admeta.updates, admeta.fused).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, _use_grad_for_differentiable

from admeta.errors import UnknownPresetError
from admeta.implementation import (
    check_capturable,
    check_flags,
    fused_available,
    prefers_fused,
    refuse_unfused,
    uses_foreach,
)
from admeta.parameters import FromPreset, check_option
from admeta.plans import FusedPlan, PlanCache
from admeta.rule import Number, UpdateRule
from admeta.state import WatchedState, as_step, checked_state, fill_state, step_is_ready
from admeta.tensors import GroupTensors, state_dtype, viewed
from admeta.updates import multi_tensor_update, single_tensor_update

__all__ = ["RuleOptimizer", "decay_groups"]

_HOST = torch.device("cpu")
_FLAGS: Mapping[str, object] = {
    "foreach": None, "fused": None, "maximize": False, "capturable": False, "differentiable": False
}  # fmt: skip
_DTYPE_NAMES: Mapping[object, str] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class RuleOptimizer(Optimizer, ABC):
    """Base of the optimizers whose update is an ``UpdateRule``.

    State of a parameter: ``step``, float64, and tensors of its shape, each only where the rule uses it: ``dema`` (J),
    ``exp_avg`` (m), ``exp_avg_sq`` (v), ``slow`` (φ). These are at least float32, or bfloat16 with ``state_dtype``.

    Attributes:
        presets: options by preset, where they differ from the constructor's defaults.
        later_options: what a group has whose checkpoint is older than these options.
    """

    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    later_options: ClassVar[Mapping[str, object]] = {
        **_FLAGS, "raw_eps": False, "state_dtype": "float32", "rounding": "nearest", "momentum": None
    }  # fmt: skip

    def __init__(self, params: ParamsT, given: Mapping[str, Any]) -> None:
        """
        Args:
            params: parameters, (name, parameter) pairs, or groups of either.
            given: the constructor's ``locals()``: its options by name.

        Raises:
            ValueError, RuntimeError: a value or a combination of flags is refused.
        """
        options = {name: value for name, value in given.items() if name not in ("self", "params", "__class__")}
        chosen = self._preset(options.pop("preset", "default"))
        defaults = {
            name: chosen.get(name, value.value) if isinstance(value, FromPreset) else value
            for name, value in options.items()
        }
        defaults = self._checked(defaults)
        self._plans = PlanCache(defaults)
        super().__init__(params, defaults)

    @classmethod
    def _preset(cls, name: str) -> Mapping[str, object]:
        """The preset's options that differ from the defaults (UnknownPresetError)."""
        if name != "default" and name not in cls.presets:
            raise UnknownPresetError(optimizer=cls.__name__, name=name, known=cls.presets)
        return cls.presets.get(name, {})

    def _checked(self, group: dict[str, Any]) -> dict[str, Any]:
        """The group with a dtype given as torch's named; refuses values, and flags that exclude one another."""
        if "state_dtype" in group:
            group = {**group, "state_dtype": _DTYPE_NAMES.get(group["state_dtype"], group["state_dtype"])}
        for name, value in group.items():
            if name == "lr" and isinstance(value, Tensor):
                if value.numel() != 1:
                    raise ValueError("Tensor lr must be 1-element")
                value = value.item()
            if name != "momentum":  # kept for schedulers alone
                check_option(name, value)
        check_flags(group)
        self.rule_of(group)
        return group

    @staticmethod
    @abstractmethod
    def rule_of(group: dict[str, Any]) -> UpdateRule:
        """The update rule of a parameter group; refuses options that exclude one another (ValueError)."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; any option may differ from the other groups', by a ``preset`` too.

        Raises:
            ValueError: an option's value is refused, or torch's own checks fail.
        """
        if isinstance(param_group, dict):
            if "preset" in param_group:
                param_group = {**self._whole_preset(param_group["preset"]), **param_group}
                del param_group["preset"]
            checked = self._checked({**self.defaults, **param_group})
            param_group = {name: checked[name] for name in param_group}
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        narrow = group.get("state_dtype") == "bfloat16"
        if narrow and any(p.is_complex() for p in group["params"]):
            raise ValueError("state_dtype='bfloat16' does not support complex parameters; use state_dtype='float32'")
        if group.get("rounding") == "stochastic" and any(p.dtype == torch.float16 for p in group["params"]):
            raise ValueError("rounding='stochastic' supports bfloat16 parameters, not float16; use rounding='nearest'")

    @classmethod
    def _whole_preset(cls, name: str) -> dict[str, object]:
        """All options that a preset decides."""
        if not cls.presets:
            raise ValueError(f"{cls.__name__} has no presets; remove preset = {name!r} from the group")
        parameters = inspect.signature(cls.__init__).parameters.values()
        return {
            **{p.name: p.default.value for p in parameters if isinstance(p.default, FromPreset)},
            **cls._preset(name),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_plans" in self.__dict__:
            self._plans.clear()
        else:
            self._plans = PlanCache(self.defaults)
        for group in self.param_groups:
            for name, value in self.later_options.items():
                if name in _FLAGS or name in self.defaults:
                    group.setdefault(name, value)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state dict; state keeps the optimizer's own dtype, where torch casts it to the parameter's.

        Raises:
            ValueError: the state is another optimizer's.
        """
        loaded: list[dict[str, Any]] = []

        def check(_: Optimizer, final: dict[str, Any]) -> dict[str, Any]:
            loaded.append(checked_state(final, self))
            return loaded[0]

        # Registered here, so that they run after the user's pre-hooks and before the user's post-hooks.
        seen = self.register_load_state_dict_pre_hook(check)
        restored = self.register_load_state_dict_post_hook(lambda _: self._restore_dtypes(loaded[0]), prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            seen.remove()
            restored.remove()

    def _restore_dtypes(self, loaded: dict[str, Any]) -> None:
        ids = [i for group in loaded["param_groups"] for i in group["params"]]
        owners = [(p, group) for group in self.param_groups for p in group["params"]]
        for i, (param, group) in zip(ids, owners, strict=True):
            dtype = state_dtype(param, group.get("state_dtype", "float32"))
            for name, value in loaded["state"].get(i, {}).items():
                own = self.state[param]
                if name == "step":
                    own[name] = as_step(value).to(own[name].device)
                elif isinstance(value, Tensor) and own[name].dtype != dtype:
                    own[name] = value.to(dtype=dtype, device=param.device)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Performs a single optimization step.

        Args:
            closure: reevaluates the model and returns the loss.

        Returns:
            The closure's loss, or None.

        Raises:
            RuntimeError: sparse gradients, or graph capture without ``capturable``.
        """
        capturing = self._is_captured()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not torch.compiler.is_compiling():  # a compiled step has no plans, and couldn't trace the check of them
            self._plans.drop_stale(self.state)
        for index, group in enumerate(self.param_groups):
            if self._uses_fused(index, group):
                self._update_fused(index, group, capturing=capturing)
            else:
                self._update_unfused(group)
        return loss

    def _is_captured(self) -> bool:
        """Whether a CUDA graph is being captured; refuses groups that aren't capturable."""
        if torch.compiler.is_compiling() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return False
        if not torch.cuda.is_current_stream_capturing():
            return False
        if not all(group["capturable"] for group in self.param_groups):
            raise RuntimeError(
                f"Attempting CUDA graph capture of step() for an instance of {type(self).__name__} "
                "but param_groups' capturable is False."
            )
        return True

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What GradScaler asks: whether ``step`` unscales gradients and skips the update on found_inf by itself."""
        return all(self._uses_fused(index, group) for index, group in enumerate(self.param_groups))

    @property
    def takes_narrow_gradients(self) -> bool:
        """Whether gradients may stay bf16 with float32 parameters: the kernels widen them as they read them.

        Parameters then move as if the gradients had been widened before, to the last bit.
        """
        return self._step_supports_amp_scaling

    def _uses_fused(self, index: int, group: dict[str, Any]) -> bool:
        if torch.compiler.is_compiling():
            return False
        if group["fused"] is not None:
            return bool(group["fused"])
        if group["foreach"] is not None or group["differentiable"]:
            return False
        return index in self._plans or fused_available(group["params"])

    def _update_unfused(self, group: dict[str, Any]) -> None:
        tensors = self._collect(group)
        if not tensors.params:
            return
        if getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None:
            raise AssertionError("Expected grad_scale and found_inf to be None")
        rule = self.rule_of(group)
        lr: Number = group["lr"]
        on_device = group["capturable"] or torch.compiler.is_compiling()
        update = multi_tensor_update if uses_foreach(group, lr, on_device=on_device) else single_tensor_update
        update(viewed(tensors, centralize=rule.centralize), rule, lr=lr, on_device=on_device)

    def _update_fused(self, index: int, group: dict[str, Any], *, capturing: bool) -> None:
        plan = self._plan_for(index, group)
        if plan is None:
            return
        if capturing:
            plan = self._plans.keep_for_graph(plan)
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        plan.run(group["lr"], grad_scale=scale, found_inf=found_inf)

    def _plan_for(self, index: int, group: dict[str, Any]) -> FusedPlan | None:
        """The group's plan for this step, reused where it holds; None when no parameter has a gradient."""
        params = group["params"]
        grads = [grad for p in params if (grad := p.grad) is not None]
        if not grads:
            return None
        if len(grads) != len(params):
            params = [p for p in params if p.grad is not None]
        plan = self._plans.renewed(index, group, params, grads, self.rule_of)
        if plan is None:
            refuse_unfused(params)
            plan = FusedPlan.of(self._collect(group), self.rule_of(group), self._plans.options_of(group))
            self.state = self._plans.add(index, plan, self.state)
        return plan

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state as plain dictionaries, as torch.optim's."""
        result = super().state_dict()
        result["state"] = {key: dict(value) if isinstance(value, WatchedState) else value
                           for key, value in result["state"].items()}  # fmt: skip
        return result

    def _collect(self, group: dict[str, Any]) -> GroupTensors:
        lists: list[list[Tensor]] = [[], [], [], [], [], [], []]
        params, grads, demas, exp_avgs, exp_avg_sqs, slows, steps = lists
        self._init_group(group, params, grads, demas, exp_avgs, exp_avg_sqs, slows, steps)
        return GroupTensors(params, grads, demas, exp_avgs, exp_avg_sqs, slows, steps)

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        demas: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        slows: list[Tensor],
        steps: list[Tensor],
    ) -> bool:
        """Fills the lists with the parameters that have a gradient, and their state; makes missing state.

        torch.compile knows the method by its name: it runs it outside the graph and maps the lists' tensors.
        """
        rule = self.rule_of(group)
        names = rule.state_names
        compiling = torch.compiler.is_compiling()
        on_device = group["capturable"] or prefers_fused(group)
        if group["capturable"]:
            check_capturable(group["params"])
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            if grad.is_sparse or grad.is_sparse_csr:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            state = self.state[param]
            if len(state) == 0:
                fill_state(state, param, rule, group.get("state_dtype", "float32"))
            missing = [name for name in names if name not in state]
            if missing:
                raise RuntimeError(
                    f"{type(self).__name__}: a parameter has state but no {missing[0]!r}. An option that needs it was "
                    "turned on after the first step; set it before, or start again with optimizer.state.clear()"
                )
            wanted = param.device if on_device else _HOST
            if not compiling and not step_is_ready(state["step"], wanted):
                state["step"] = as_step(state["step"]).to(wanted)
            params.append(param)
            grads.append(grad)
            steps.append(state["step"])
            exp_avgs.append(state["exp_avg"])
            if rule.dema is not None:
                demas.append(state["dema"])
            if rule.moments is not None:
                exp_avg_sqs.append(state["exp_avg_sq"])
            if rule.slow is not None:
                slows.append(state["slow"])
        return False


def decay_groups(
    model: torch.nn.Module | Iterable[tuple[str, torch.Tensor]],
    weight_decay: float,
    *,
    on: Literal["all", "matrices"] = "all",
) -> list[dict[str, Any]]:
    """Groups for any torch optimizer, with weight decay on every parameter or on matrices alone.

    Args:
        model: a module, or (name, parameter) pairs; parameters that need no gradient are left out.
        weight_decay: coefficient, ≥ 0.
        on: ``"all"``, as the Admeta paper does; ``"matrices"`` decays parameters of two or more dimensions
            (linear and convolution weights, embeddings) and leaves biases, norms and scalars alone.

    Returns:
        One group, or two with the decayed one first; an empty group is left out. Parameters are
        (name, tensor) pairs, so checkpoints carry names.

    Raises:
        ValueError: ``on`` is neither, or no parameter needs a gradient.
    """
    if on not in ("all", "matrices"):
        raise ValueError(f"weight decay on {on!r}: must be 'all' or 'matrices'")
    pairs = model.named_parameters() if isinstance(model, torch.nn.Module) else model
    named = [(name, p) for name, p in pairs if p.requires_grad]
    if not named:
        raise ValueError("no parameter needs a gradient; unfreeze some before making groups")
    if on == "all":
        return [{"params": named, "weight_decay": weight_decay}]
    groups = [
        {"params": [(n, p) for n, p in named if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [(n, p) for n, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
