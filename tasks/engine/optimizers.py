"""The trial's optimizer as the engine needs it: tried before a study, lr as a tensor, its state across devices."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from admeta.errors import AdmetaError
from admeta.imports import NO_GRADIENT_GRAPH, code_lines, in_words, is_path
from admeta.roles import JointOptimizer, create_for_model, set_mode
from tasks.engine.task import Batch, Task
from tasks.errors import CheckpointError, ConfigError

N_SAMPLES = 4  # of a batch, for the step that tries an optimizer


def lr_tensors(optimizer: torch.optim.Optimizer, *, device: torch.device) -> list[Tensor]:
    """Turn each group's lr into a 0-dim float32 tensor on the device, which a captured step reads at each replay."""
    tensors = []
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=device)
        tensors.append(group["lr"])
    return tensors


def try_optimizer(
    task: Task[Any, Any], model: nn.Module, *, label: str, name: str, many: Sequence[Mapping[str, Any]]
) -> None:
    """Construct an optimizer with each of these settings, and make one step and one checkpoint with the first.

    Args:
        model: on the CPU; it has the same weights afterwards, so that the next optimizer is not tried on those of a
            step that may have diverged.

    Raises:
        ConfigError: it refuses the settings or the model, fails in the step, or has a state that cannot be stored.
    """
    options: Any = {"weight_decay_on": task.config.weight_decay_on}
    where = f"optimizer '{label}' ({name})"
    for settings in reversed(many):
        try:
            optimizer = create_for_model(name, model, settings, **options)
        except AdmetaError as error:
            raise ConfigError(f"{where}: {error}") from error
        except Exception as error:  # of another package's code
            raise ConfigError(
                f"{where} cannot be constructed for {task.config.model} with {dict(settings)}: {_reason(error)}; "
                "change its 'space' or 'fixed', or give it 'roles'"
            ) from error
        _check_groups(optimizer, where)
    batch = {key: tensor[:N_SAMPLES] for key, tensor in first_batch(task).items()}
    before = [tensor.detach().clone() for tensor in _weights(model)]
    model.zero_grad()
    task.loss(model.train(), batch).backward()  # type: ignore[no-untyped-call]
    try:
        set_mode(optimizer, "train")
        optimizer.step()
        set_mode(optimizer, "eval")
    except Exception as error:  # of another package's code
        lines = "".join(
            code_lines(error, one.partition(":")[0].partition(".")[0]) for one in name.split("+") if is_path(one)
        )
        raise ConfigError(f"{where} cannot train {task.config.model}: {_reason(error)}{lines}") from error
    for tensor, value in zip(_weights(model), before, strict=True):
        tensor.detach().copy_(value)
    stored = io.BytesIO()
    try:
        torch.save(optimizer.state_dict(), stored)
        stored.seek(0)
        torch.load(stored, weights_only=True)
    except (UnpicklingError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{where} has a state that cannot be stored in a checkpoint: it must consist of tensors, numbers, texts "
            "and lists or dictionaries of them"
        ) from error


def _check_groups(optimizer: torch.optim.Optimizer, where: str) -> None:
    """Check what the engine needs of a constructed optimizer: groups with an lr, which the schedule sets."""
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        raise ConfigError(f"{where} has no param_groups; its __init__ must call super().__init__(params, defaults)")
    if not all("lr" in group for group in groups):
        raise ConfigError(
            f"{where} has no 'lr' in its param_groups, where the schedule sets it; call "
            "super().__init__(params, {'lr': lr}) and read group['lr'] in step"
        )


def first_batch(task: Task[Any, Any]) -> Batch:
    """The first batch of the first epoch."""
    batches = task.train_batches(seed=0, epoch=0)
    batch = next(iter(batches))
    if (close := getattr(batches, "close", None)) is not None:
        close()
    return batch


def _weights(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _reason(error: Exception) -> str:
    """The error in one line; what it means where an optimizer differentiates the gradient."""
    words = in_words(error)
    if "does not require grad and does not have a grad_fn" in words:
        return NO_GRADIENT_GRAPH
    return words.splitlines()[0]


IMPLEMENTATION_FLAGS = ("capturable", "foreach", "fused", "differentiable")


def state_tensors(state: Any) -> Iterator[Tensor]:
    """The tensors in an optimizer's state, in dictionaries and lists of any depth."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from state_tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from state_tensors(value)


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load a state, keeping how this optimizer is implemented: a run may resume on another device, eager too.

    Raises:
        CheckpointError: the state is not of this optimizer over these parameters.
    """
    if isinstance(optimizer, JointOptimizer):
        states = state.get("members", ())
        if len(states) != len(optimizer.members):
            raise CheckpointError(
                f"the checkpoint holds the states of {len(states)} joint optimizers, this run has "
                f"{len(optimizer.members)}; resume with the version that wrote it, or start without it"
            )
        for member, part in zip(optimizer.members, states, strict=True):
            load_optimizer_state(member, part)
        optimizer.adopt_groups()
        return
    own = optimizer.param_groups
    sizes = [[len(group["params"]) for group in groups] for groups in (state["param_groups"], own)]
    if sizes[0] != sizes[1]:
        raise CheckpointError(
            f"the checkpoint's optimizer has groups of {sizes[0]} parameters, this run's of {sizes[1]}; resume with "
            "the version that wrote it, or start without it"
        )
    groups = [
        {
            **{name: value for name, value in loaded.items() if name not in IMPLEMENTATION_FLAGS},
            **{flag: group[flag] for flag in IMPLEMENTATION_FLAGS if flag in group},
        }
        for loaded, group in zip(state["param_groups"], own, strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": groups})
