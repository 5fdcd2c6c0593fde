"""torch.compile's default backend, with linear layers of one input joined: a transformer's query, key and value.

A short batch's products wait for their weights, so three cost three times what one of three times the width costs;
joined they also have one sum of bias gradients, and their input's gradient needs no adding up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

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
