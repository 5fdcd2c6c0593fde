"""The torch optimizer around the update rule: groups, state, choice of implementation, checkpoints.

Owns: what AdmetaR, AdmetaS, Ranger, AdaBelief and torch's optimizers by our kernels share as
``torch.optim.Optimizer``s. Does not own: their options (one module each) and the update (admeta.rule, admeta.single,
admeta.multi, admeta.fused).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    _use_grad_for_differentiable,
)

from admeta.coefficients import Number
from admeta.implementation import (
    Flags,
    check_capturable,
    check_flags,
    fused_available,
    prefers_fused,
    refuse_unfused,
    uses_foreach,
)
from admeta.multi import multi_tensor_update
from admeta.plans import FusedPlan, PlanCache
from admeta.rule import UpdateRule
from admeta.single import single_tensor_update
from admeta.state import WatchedState, fill_state
from admeta.tensors import GroupTensors, state_dtype, viewed

__all__ = ["RuleOptimizer"]

_HOST = torch.device("cpu")


class RuleOptimizer(Optimizer, ABC):
    """Base of the optimizers whose update is an ``UpdateRule``.

    State of a parameter, all but ``step`` of its shape and at least float32: ``step``, ``dema`` (J),
    ``exp_avg`` (m), ``exp_avg_sq`` (v), ``slow`` (φ), each only where the rule uses it.

    Attributes:
        checks: of a group's option values, in the order in which torch would make them.
    """

    checks: ClassVar[tuple[Callable[[dict[str, Any]], None], ...]]

    def __init__(self, params: ParamsT, options: dict[str, Any], flags: Flags) -> None:
        """
        Args:
            params: parameters, (name, parameter) pairs, or groups of either.
            options: what the optimizer's own arguments say, by name.
            flags: how its steps run.

        Raises:
            ValueError, RuntimeError: a value or a combination of flags is refused.
        """
        defaults = {**options, **flags.as_options()}
        self._check(defaults)
        self._plans = PlanCache(defaults)
        super().__init__(params, defaults)

    def _check(self, group: dict[str, Any]) -> None:
        """Refuses a group's option values with torch's messages, in the order of ``checks``."""
        for check in self.checks:
            check(group)
        check_flags(group)

    @staticmethod
    @abstractmethod
    def rule_of(group: dict[str, Any]) -> UpdateRule:
        """The update rule of a parameter group."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; any option may differ from the other groups'.

        Raises:
            ValueError: an option's value is refused, or torch's own checks fail.
        """
        if isinstance(param_group, dict):
            self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_plans" in self.__dict__:
            self._plans.clear()
        else:
            self._plans = PlanCache(self.defaults)
        for group in self.param_groups:
            for name in ("maximize", "capturable", "differentiable"):
                group.setdefault(name, False)
            group.setdefault("foreach", None)
            group.setdefault("fused", None)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state dict; state keeps the optimizer's own dtype, where torch casts it to the parameter's."""
        loaded: list[dict[str, Any]] = []
        # Registered here, so that they run after the user's pre-hooks and before the user's post-hooks.
        seen = self.register_load_state_dict_pre_hook(lambda _, final: loaded.append(final))
        restored = self.register_load_state_dict_post_hook(lambda _: self._restore_dtypes(loaded[0]), prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            seen.remove()
            restored.remove()

    def _restore_dtypes(self, loaded: dict[str, Any]) -> None:
        ids = [i for group in loaded["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, param in zip(ids, params, strict=True):
            dtype = state_dtype(param)
            for name, value in loaded["state"].get(i, {}).items():
                if name != "step" and isinstance(value, Tensor) and self.state[param][name].dtype != dtype:
                    self.state[param][name] = value.to(dtype=dtype, device=param.device)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Performs a single optimization step.

        Args:
            closure: reevaluates the model and returns the loss.

        Returns:
            The closure's loss, or None.

        Raises:
            RuntimeError: sparse gradients, or graph capture without ``capturable``.
        """
        if closure is None and not torch.compiler.is_compiling() and self._repeated():
            return None
        return self._step(closure)

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """torch's wrapper of ``step``, passed by where nobody listens: no hook and no profiler.

        It is a sixth of the host's time of a small model's step.
        """
        heard = Optimizer.profile_hook_step(func)

        @wraps(func)
        def step(self: RuleOptimizer, *args: Any, **kwargs: Any) -> Any:
            if (
                self._optimizer_step_pre_hooks
                or self._optimizer_step_post_hooks
                or _global_optimizer_pre_hooks
                or _global_optimizer_post_hooks
                or torch.compiler.is_compiling()
                or torch._C._autograd._profiler_enabled()
            ):
                return heard(self, *args, **kwargs)
            return func(self, *args, **kwargs)

        return step

    def _repeated(self) -> bool:
        """Runs the last step's launches again, if every group is fused and nothing at all changed since."""
        plans = self._plans.untouched(self.param_groups, self.state)
        if plans is None or self._is_captured():
            return False
        for plan, group in zip(plans, self.param_groups, strict=True):
            self._run(plan, group)
        return True

    @_use_grad_for_differentiable
    def _step(self, closure: Callable[[], float] | None) -> float | None:
        capturing = self._is_captured()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not torch.compiler.is_compiling():  # a compiled step has no plans, and couldn't trace the look at them
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
        """What GradScaler asks: whether ``step`` unscales gradients and heeds found_inf by itself."""
        return all(self._uses_fused(index, group) for index, group in enumerate(self.param_groups))

    @property
    def takes_narrow_gradients(self) -> bool:
        """Whether gradients may stay bf16 beside float32 parameters: the kernels widen them as they read them.

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
        raw = self._collect(group)
        if not raw.params:
            return
        if getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None:
            raise AssertionError("Expected grad_scale and found_inf to be None")
        rule = self.rule_of(group)
        lr: Number = group["lr"]
        on_device = group["capturable"] or torch.compiler.is_compiling()
        if uses_foreach(group, lr, on_device=on_device):
            multi_tensor_update(viewed(raw, centralize=rule.centralize), rule, lr=lr, on_device=on_device)
        else:
            single_tensor_update(viewed(raw, centralize=rule.centralize), rule, lr=lr, on_device=on_device)

    def _update_fused(self, index: int, group: dict[str, Any], *, capturing: bool) -> None:
        plan = self._plan_for(index, group)
        if plan is not None and capturing:
            plan = self._plans.keep_for_graph(plan)
        if plan is not None:
            self._run(plan, group)

    def _run(self, plan: FusedPlan, group: dict[str, Any]) -> None:
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        plan.run(group["lr"], grad_scale=scale, found_inf=found_inf)

    def _plan_for(self, index: int, group: dict[str, Any]) -> FusedPlan | None:
        """The group's plan for this step, reused where it holds; None when no parameter has a gradient."""
        params = with_grad = group["params"]
        grads = [grad for p in params if (grad := p.grad) is not None]
        if not grads:
            return None
        if len(grads) != len(params):
            with_grad = [p for p in params if p.grad is not None]
        options = self._plans.options_of(group)
        plan = self._plans.renewed(index, params, with_grad, grads, options)
        if plan is None:
            refuse_unfused(with_grad)
            plan = FusedPlan.of(self._collect(group), self.rule_of(group), options)
            self.state = self._plans.add(index, plan, self.state)
        return plan

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state as plain dictionaries, as torch.optim's."""
        result = super().state_dict()
        result["state"] = {key: dict(value) if isinstance(value, WatchedState) else value
                           for key, value in result["state"].items()}  # fmt: skip
        return result

    def _collect(self, group: dict[str, Any]) -> GroupTensors:
        raw = GroupTensors()
        self._init_group(group, raw.params, raw.grads, raw.demas, raw.exp_avgs, raw.exp_avg_sqs, raw.slows, raw.steps)
        return raw

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
                fill_state(state, param, rule)
            wanted = param.device if on_device else _HOST
            if not compiling and state["step"].device != wanted:
                state["step"] = state["step"].to(wanted)
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
