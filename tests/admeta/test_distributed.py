"""FSDP2's kind of parameters: DTensors, updated by their local shards. One process, gloo."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.admeta.cases import DEFAULTS, DEVICE, IMPLEMENTATIONS, Case, case_id


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    yield init_device_mesh(DEVICE, (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", DEFAULTS, ids=case_id)
def test_dtensor_parameters_train_as_plain_ones(mesh: Any, case: Case, implementation: str) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    torch.manual_seed(0)
    starts = [torch.randn(6, 4, device=DEVICE), torch.randn(5, device=DEVICE)]
    plain = [torch.nn.Parameter(s.clone()) for s in starts]
    sharded = [torch.nn.Parameter(distribute_tensor(s.clone(), mesh, [Shard(0)])) for s in starts]
    flags = IMPLEMENTATIONS[implementation]
    first, second = case.create(plain, **flags), case.create(sharded, **flags)
    for step in range(13):
        for p, q in zip(plain, sharded, strict=True):
            p.grad = torch.randn_like(p)
            # every third gradient comes with other placements than its parameter
            placement = Replicate() if step % 3 == 0 else Shard(0)
            q.grad = distribute_tensor(p.grad.clone(), mesh, [placement])
        first.step()
        second.step()
    for p, q in zip(plain, sharded, strict=True):
        assert isinstance(q.data, DTensor)
        torch.testing.assert_close(q.detach().full_tensor(), p.detach(), rtol=1e-6, atol=1e-7)
        for name, value in second.state[q].items():
            assert name == "step" or (isinstance(value, DTensor) and value.placements == (Shard(0),))


def test_centralising_needs_whole_rows(mesh: Any) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    import admeta

    p = torch.nn.Parameter(distribute_tensor(torch.ones(4, 4, device=DEVICE), mesh, [Shard(1)]))
    p.grad = distribute_tensor(torch.ones(4, 4, device=DEVICE), mesh, [Shard(1)])
    with pytest.raises(RuntimeError, match="needs whole rows"):
        admeta.Ranger([p]).step()
    admeta.Ranger([p], centralize=False).step()


def test_fsdp2_with_distributed_state_dicts(mesh: Any) -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    import admeta

    def trained(sharded: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(DEVICE)
        x, y = torch.randn(4, 8, device=DEVICE), torch.randn(4, 1, device=DEVICE)
        if sharded:
            fully_shard(model, mesh=mesh)
        optimizer = admeta.AdmetaR(model.parameters(), lr=0.01)
        for step in range(14):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            if sharded and step == 7:
                state = get_optimizer_state_dict(model, optimizer)
                assert isinstance(state["state"]["0.weight"]["dema"], DTensor)
                set_optimizer_state_dict(model, optimizer, state)
        return [p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]

    for a, b in zip(trained(sharded=True), trained(sharded=False), strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=1e-6, atol=1e-7)
