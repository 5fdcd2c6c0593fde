"""What the engine changes in a model before it trains: bf16 weights, batch norm, joined linear layers.

`CastWeights` keeps bf16 copies of float32 weights, updated by one kernel launch a step. Autocast casts the weight of
every convolution and linear layer in each forward pass, and each gradient back, by kernels whose launch takes longer
than their work; `CastWeights.of_layers` avoids that and computes the same numbers. `CastWeights.of_all` runs the whole
model in bf16 without autocast, norms and embeddings included (they accumulate in float32 inside their kernels), so
that no activation is cast between layers; the weights, the sum of gradients over micro-batches and the update are
float32. Gradients are converted to float32 by one more launch, or left as bf16 (`keep_gradients_narrow`) where nothing
is added to them and the update converts them itself: 8 bytes a parameter less to move, with the same numbers.
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
    """Some float32 parameters of a model and their bf16 copies, which are made once of those that are not trained.

    Args:
        slots: the places of the parameters, as (module, name); a parameter in several places has one copy.
    """

    def __init__(self, slots: Sequence[_Slot]) -> None:
        self._slots = list(slots)
        standing = [parameter for module, name in self._slots if (parameter := module._parameters[name]) is not None]
        self._masters = list({id(parameter): parameter for parameter in standing}.values())
        self._copies = [
            nn.Parameter(torch.empty_like(p, dtype=torch.bfloat16), requires_grad=p.requires_grad)
            for p in self._masters
        ]
        self._moving = [index for index, parameter in enumerate(self._masters) if parameter.requires_grad]
        with torch.no_grad():
            for master, copy in zip(self._masters, self._copies, strict=True):
                if not master.requires_grad:
                    copy.copy_(master)
        place = {id(parameter): index for index, parameter in enumerate(self._masters)}
        self._in_slot = [place[id(parameter)] for parameter in standing]
        self._fixed: dict[int, Tensor] = {}
        self._narrow = False

    @classmethod
    def of_layers(cls, model: nn.Module) -> Self:
        """The trained parameters of linear and convolutional layers; autocast casts the rest.

        Shared parameters are left to autocast too: their gradients come from several places.
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
        """Every float32 parameter, also those that are not trained."""
        return cls(_slots(model))

    def keep_gradients_narrow(self) -> None:
        """From now on keep bf16 gradients as bf16, for an update that reads them; one backward pass a step."""
        for master in self._masters:
            master.grad_dtype = None
        self._narrow = True

    def fix_gradients(self, owners: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
        """From now on write the gradients of these parameters into these tensors, which a captured update reads."""
        self._fixed = {id(owner): gradient for owner, gradient in zip(owners, gradients, strict=True)}

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Update the copies and use them in the layers, for one forward pass."""
        with torch.no_grad():
            torch._foreach_copy_([self._copies[i] for i in self._moving], [self._masters[i] for i in self._moving])
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
    """The places of float32 parameters."""
    return [
        (module, name)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.dtype == torch.float32
    ]


_COUNTER = "num_batches_tracked"


def drop_batch_counters(model: nn.Module) -> None:
    """Remove `num_batches_tracked` from every norm whose running statistics have a fixed momentum.

    This saves one launch a norm and step. Only cumulative averages (momentum None) use the counter; torch skips its
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

    Uses torch's SyncBatchNorm, which needs CUDA and the batch counter; parameters and buffers stay the model's.

    Args:
        compiled: whether parts of the model will be compiled; the norms wait for other ranks, so run eagerly.
    """
    shared: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    if compiled:
        for module in shared.modules():
            if isinstance(module, nn.SyncBatchNorm):
                module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign, no-untyped-call]
    return shared


_LINEAR = (torch._C._nn.linear, torch.nn.functional.linear)


def joined_inductor(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Any:
    """A backend for `torch.compile`: `join_linears`, then inductor.

    A transformer's query, key and value are layers of one input. For short batches the time of a product is that of
    reading its weights, so joined they cost a third; there is also one sum of bias gradients, and one input gradient.
    """
    from torch._inductor.compile_fx import compile_fx

    join_linears(graph_module)
    return compile_fx(graph_module, list(example_inputs))


def join_linears(graph_module: GraphModule) -> int:
    """Replace linear layers of the same input by one and views of its output; returns how many were removed.

    Only layers whose weights and biases are inputs of the graph: what the graph computes may not exist yet at the place
    of the first layer.
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
