"""bf16 copies of float32 weights, made by one launch a step, and their gradients handed to the weights.

Two uses. Autocast casts every convolution's and linear layer's weight in each forward pass, and each gradient back, by
kernels that take longer to start than to run; `CastWeights.of_layers` saves those, with autocast's own numbers.
`CastWeights.of_all` runs the whole model in bf16 without autocast, norms and embeddings too (they add up in float32
inside their kernels), so that no activation is cast between layers; only the weights, their gradients' sum over
micro-batches and the update are float32.

Gradients are widened to float32 by one launch more, or left as they are (`keep_gradients_narrow`) where nothing is
added to them and the update widens them itself: 8 bytes a parameter less to move, and the same numbers, as widening is
exact.


Batch norm as the engine has it: without its batch counter, and over all cards of a run.

torch.compile's default backend, with linear layers of one input joined: a transformer's query, key and value.

A short batch's products wait for their weights, so three cost three times what one of three times the width costs;
joined they also have one sum of bias gradients, and their input's gradient needs no adding up.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn.modules.batchnorm import _BatchNorm

GRADIENTS_MAY_BE_NARROW = hasattr(Tensor, "grad_dtype")  # torch 2.10; before, `.grad` had its parameter's dtype
_CAST_MODULES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


_Slot = tuple[nn.Module, str]


class CastWeights:
    """Some float32 parameters of a model and their bf16 copies.

    Args:
        slots: where they stand, as (module, name); a parameter with several slots has one copy for all of them.
    """

    def __init__(self, slots: Sequence[_Slot]) -> None:
        self._slots = list(slots)
        standing = [parameter for module, name in self._slots if (parameter := module._parameters[name]) is not None]
        self._masters = list({id(parameter): parameter for parameter in standing}.values())
        self._copies = [
            nn.Parameter(torch.empty_like(p, dtype=torch.bfloat16), requires_grad=p.requires_grad)
            for p in self._masters
        ]
        place = {id(parameter): index for index, parameter in enumerate(self._masters)}
        self._in_slot = [place[id(parameter)] for parameter in standing]
        self._fixed: dict[int, Tensor] = {}
        self._narrow = False

    @classmethod
    def of_layers(cls, model: nn.Module) -> Self:
        """The trained parameters of linear and convolutional layers; the rest is left to autocast.

        So are parameters that several places share: their gradients come from more than one of them.
        """
        slots = _slots(model)
        uses = Counter(id(module._parameters[name]) for module, name in slots)
        return cls(
            [
                (module, name)
                for module, name in slots
                if type(module) in _CAST_MODULES
                and (parameter := module._parameters[name]) is not None
                and parameter.requires_grad
                and uses[id(parameter)] == 1
            ]
        )

    @classmethod
    def of_all(cls, model: nn.Module) -> Self:
        """Every float32 parameter, those that are not trained too."""
        return cls(_slots(model))

    def keep_gradients_narrow(self) -> None:
        """From now on hand bf16 gradients over as bf16, for an update that reads those; one backward pass a step."""
        for master in self._masters:
            master.grad_dtype = None
        self._narrow = True

    def fix_gradients(self, owners: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
        """From now on write the gradients of these parameters into these tensors, which a captured update reads."""
        self._fixed = {id(owner): gradient for owner, gradient in zip(owners, gradients, strict=True)}

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Refresh the copies and let them stand in the layers; for one forward pass."""
        with torch.no_grad():
            torch._foreach_copy_([*self._copies], [*self._masters])
        self._place(self._copies)
        try:
            yield
        finally:
            self._place(self._masters)

    @torch.no_grad()
    def hand_over_gradients(self) -> None:
        """After each backward pass: the copies' gradients become the parameters' own or add to them, as float32.

        Or as bf16, after `keep_gradients_narrow`.
        """
        targets: list[Tensor] = []
        fresh: list[Tensor] = []
        sums: list[tuple[Tensor, Tensor]] = []
        for master, copy in zip(self._masters, self._copies, strict=True):
            if (gradient := copy.grad) is None:
                continue
            copy.grad = None
            if master.grad is not None:
                assert master.grad.dtype == torch.float32, "bf16 gradients of several passes must not be added up"
                sums.append((master.grad, gradient))
                continue
            target = self._fixed.get(id(master))
            if target is None and self._narrow:
                master.grad = gradient
                continue
            master.grad = torch.empty_like(master) if target is None else target
            targets.append(master.grad)
            fresh.append(gradient)
        if targets:
            torch._foreach_copy_(targets, fresh)
        for total, gradient in sums:
            total += gradient

    def _place(self, parameters: list[nn.Parameter]) -> None:
        for (module, name), index in zip(self._slots, self._in_slot, strict=True):
            module._parameters[name] = parameters[index]


def _slots(model: nn.Module) -> list[_Slot]:
    """Where float32 parameters stand."""
    return [
        (module, name)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.dtype == torch.float32
    ]


_COUNTER = "num_batches_tracked"


def drop_batch_counters(model: nn.Module) -> None:
    """Remove `num_batches_tracked` from every norm whose running statistics have a fixed momentum.

    One launch fewer a norm and step. The counter only serves cumulative averages (momentum None); torch skips its
    update where it is None.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.momentum is not None:
            module.num_batches_tracked = None


def is_batch_counter(name: str) -> bool:
    """Whether an entry of a state dict is such a counter, as other programs' checkpoints have."""
    return name.rpartition(".")[2] == _COUNTER


def share_batch_norm(model: nn.Module, *, compiled: bool) -> nn.Module:
    """The model with batch norms over the samples of all ranks, so that how many there are changes no result.

    Torch's own, which needs its batch counter, and cards; all parameters and buffers stay the model's.

    Args:
        compiled: parts of the model will be; these norms run eagerly between them, as they wait for other processes.
    """
    shared: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    if compiled:
        for module in shared.modules():
            if isinstance(module, nn.SyncBatchNorm):
                module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign, no-untyped-call]
    return shared


_LINEAR = (torch._C._nn.linear, torch.nn.functional.linear)


def joined_inductor(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Any:
    """A backend for `torch.compile`: `join_linears`, then inductor."""
    from torch._inductor.compile_fx import compile_fx

    join_linears(graph_module)
    return compile_fx(graph_module, list(example_inputs))


def join_linears(graph_module: GraphModule) -> int:
    """Replace linear layers of the same input by one and views of its output; how many are gone.

    Only layers whose weights, and biases or none of them, are inputs of the graph: what is computed inside it may not
    be there yet where the first of them stands.
    """
    groups: dict[tuple[Node, bool], list[Node]] = {}
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and node.target in _LINEAR and _is_plain(node):
            groups.setdefault((node.args[0], _bias(node) is not None), []).append(node)
    removed = 0
    for nodes in groups.values():
        if len(nodes) > 1:
            _join(graph_module, nodes)
            removed += len(nodes) - 1
    if removed:
        graph_module.graph.lint()
        graph_module.recompile()
    return removed


def _join(graph_module: GraphModule, nodes: Sequence[Node]) -> None:
    graph = graph_module.graph
    with graph.inserting_before(nodes[0]):
        inputs = [nodes[0].args[0], graph.call_function(torch.cat, ([node.args[1] for node in nodes],))]
        if _bias(nodes[0]) is not None:
            inputs.append(graph.call_function(torch.cat, ([_bias(node) for node in nodes],)))
        whole = graph.call_function(torch.nn.functional.linear, tuple(inputs))
        begin = 0
        for node in nodes:
            width = int(node.args[1].meta["example_value"].shape[0])  # type: ignore[union-attr]
            part = graph.call_function(torch.narrow, (whole, -1, begin, width))
            part.meta = dict(node.meta)
            node.replace_all_uses_with(part)
            begin += width
    for node in nodes:
        graph.erase_node(node)


def _is_plain(node: Node) -> bool:
    return len(node.args) >= 2 and all(
        isinstance(value, Node) and value.op in ("placeholder", "get_attr") and "example_value" in value.meta
        for value in (node.args[1], _bias(node))
        if value is not None
    )


def _bias(node: Node) -> Any:
    return node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
