"""The machines of the Ray that this process is connected to."""

from __future__ import annotations

import ray
from ray._private.state import available_resources_per_node  # Ray has no public way to ask for what each node has free

from service.models import NodeView


def read_nodes() -> list[NodeView]:
    """All nodes, living ones first; none where this process is not connected."""
    if not ray.is_initialized():
        return []
    free = available_resources_per_node()
    nodes = [
        NodeView(
            id=node["NodeID"],
            host=node["NodeManagerHostname"],
            address=node["NodeManagerAddress"],
            alive=node["Alive"],
            cpus=node["Resources"].get("CPU", 0.0),
            cpus_free=free.get(node["NodeID"], {}).get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            gpus_free=free.get(node["NodeID"], {}).get("GPU", 0.0),
        )
        for node in ray.nodes()
    ]
    return sorted(nodes, key=lambda node: (not node.alive, node.host, node.id))
