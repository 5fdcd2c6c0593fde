"""What only a card can show: graph capture, GradScaler, large and odd shapes, moved gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import admeta
from tests.admeta.cases import CASES, DEFAULTS, KERNEL_CLASSES, Case, case_id

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]
SHAPES = [(1000, 37), (64, 32, 3, 3), (4099,), (), (1, 5), (3, 70001), (0, 4)]


def make_params(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(s, generator=generator).to("cuda", dtype)) for s in SHAPES]


def make_grads(params: list[torch.nn.Parameter], steps: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        [torch.randn(p.shape, generator=generator).add(0.1).to(p.device, p.dtype) for p in params] for _ in range(steps)
    ]


def train(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], grads: list[list[Tensor]]) -> None:
    for step in grads:
        for p, g in zip(params, step, strict=True):
            p.grad = g
        optimizer.step()


def assert_near(got: list[Any], wanted: list[Any], tolerance: float) -> None:
    for a, b in zip(got, wanted, strict=True):
        assert (a.double() - b.double()).norm() <= tolerance * b.double().norm() + 1e-30


def tolerance(case: Case) -> float:
    """2e-6, but where the paper divides by the root of v made from a single h: h near 0 amplifies rounding."""
    return 1e-3 if "paper" in case.label and case.optimizer == "admetar" else 2e-6


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_large_and_odd_shapes(case: Case) -> None:
    results = []
    for flags in ({"foreach": False, "fused": False}, {"fused": True}):
        params = make_params()
        train(case.create(params, **flags), params, make_grads(params, 13))
        results.append([p.detach() for p in params])
    assert_near(results[1], results[0], tolerance(case))


@pytest.mark.parametrize("implementation", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_captured_step_equals_eager_steps(case: Case, implementation: dict[str, Any]) -> None:
    params, eager = make_params(), make_params()
    grads = make_grads(params, 20)
    lr = 1e-3
    optimizer = case.create(params, **{**implementation, "capturable": True, "lr": torch.tensor(lr, device="cuda")})
    reference = case.create(eager, **{**implementation, "lr": lr})
    for p, g in zip(params, grads[0], strict=True):
        p.grad = g.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        optimizer.step()  # warm-up, and the first of the steps
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for step in grads[1:]:
        for p, g in zip(params, step, strict=True):
            p.grad.copy_(g)
        graph.replay()
    train(reference, eager, grads)
    assert_near([p.detach() for p in params], [p.detach() for p in eager], tolerance(case))


def test_lr_tensor_is_read_at_every_replay() -> None:
    params = make_params()
    lr = torch.tensor(0.0, device="cuda")
    optimizer = admeta.AdmetaS(params, lr=lr, capturable=True)
    train(optimizer, params, make_grads(params, 1))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    before = [p.detach().clone() for p in params]
    graph.replay()
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    lr.fill_(0.1)
    graph.replay()
    assert all(not torch.equal(p, b) for p, b in zip(params, before, strict=True) if p.numel())


def test_whole_training_step_in_a_graph_with_gradients_of_its_own() -> None:
    def trained(captured: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
        x, y = torch.randn(16, 32, device="cuda"), torch.randn(16, 1, device="cuda")
        optimizer = admeta.AdmetaR(model.parameters(), lr=torch.tensor(0.01, device="cuda"), capturable=True)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            (model(x) - y).square().mean().backward()
            optimizer.step()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        if captured:
            graph = torch.cuda.CUDAGraph()
            optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(graph):
                step()
            for _ in range(17):
                graph.replay()
        else:
            for _ in range(17):
                step()
        return [p.detach().clone() for p in model.parameters()]

    assert_near(trained(captured=True), trained(captured=False), 1e-5)


def test_eager_steps_leave_a_captured_graph_alone() -> None:
    params = make_params()
    optimizer = admeta.AdmetaR(params, lr=torch.tensor(0.01, device="cuda"), capturable=True)
    grads = make_grads(params, 3)
    train(optimizer, params, grads[:1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()  # reads grads[0]
    train(optimizer, params, grads[1:])  # other addresses: new tables
    state = copy.deepcopy(optimizer.state_dict())
    theta = [p.detach().clone() for p in params]
    graph.replay()
    replayed = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p, old in zip(params, theta, strict=True):
            p.copy_(old)
    optimizer.load_state_dict(state)
    train(optimizer, params, grads[:1])
    assert_near(replayed, [p.detach() for p in params], 1e-6)


def test_capture_needs_capturable() -> None:
    params = make_params()
    optimizer = admeta.AdmetaR(params)
    train(optimizer, params, make_grads(params, 1))
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capturable is False"), torch.cuda.graph(graph):
        optimizer.step()


@pytest.mark.parametrize("case", DEFAULTS, ids=case_id)
def test_grad_scaler_found_inf_changes_nothing(case: Case) -> None:
    params = make_params()
    optimizer = case.create(params)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    scaler.scale(torch.zeros((), device="cuda"))
    train(optimizer, params, make_grads(params, 7))
    state = copy.deepcopy(optimizer.state_dict()["state"])
    before = [p.detach().clone() for p in params]
    for p, g in zip(params, make_grads(params, 1)[0], strict=True):
        p.grad = g
    params[0].grad[0, 0] = float("inf")  # type: ignore[index]
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    for index, kept in state.items():
        for name, value in optimizer.state_dict()["state"][index].items():
            assert torch.equal(value, kept[name]), name
    assert scaler.get_scale() == 512.0


@pytest.mark.parametrize("case", DEFAULTS, ids=case_id)
def test_grad_scaler_unscales_inside_the_kernel(case: Case) -> None:
    params, plain = make_params(), make_params()
    grads = make_grads(params, 8)
    optimizer, reference = case.create(params), case.create(plain)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    scaler.scale(torch.zeros((), device="cuda"))
    for step in grads:
        for p, g in zip(params, step, strict=True):
            p.grad = g * 1024.0
        kept = [p.grad.clone() for p in params if p.grad is not None]
        scaler.step(optimizer)
        scaler.update()
        assert all(torch.equal(p.grad, k) for p, k in zip(params, kept, strict=True) if p.grad is not None)
    train(reference, plain, grads)
    assert_near([p.detach() for p in params], [p.detach() for p in plain], 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", DEFAULTS, ids=case_id)
def test_low_precision_parameters_have_float32_state(case: Case, dtype: torch.dtype) -> None:
    results = []
    for flags in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        params = make_params(dtype)
        optimizer = case.create(params, **flags)
        train(optimizer, params, make_grads(params, 13))
        assert {t.dtype for s in optimizer.state.values() for k, t in s.items() if k != "step"} == {torch.float32}
        results.append([p.detach() for p in params])
    assert_near(results[0], results[2], 1e-2)
    assert_near(results[1], results[2], 1e-2)


def test_default_is_fused_and_memory_beside_the_state_is_small() -> None:
    params = [torch.nn.Parameter(torch.randn(1024, 4096, device="cuda")) for _ in range(8)]
    optimizer = admeta.AdmetaR(params)
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer.step()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    optimizer.step()
    assert torch.cuda.max_memory_allocated() - before < 2**20


def test_channels_last_and_transposed_parameters() -> None:
    results = []
    for flags in ({"fused": True}, {"foreach": False}):
        torch.manual_seed(0)
        conv = torch.nn.Parameter(torch.randn(8, 6, 3, 3, device="cuda").to(memory_format=torch.channels_last))
        turned = torch.nn.Parameter(torch.randn(5, 7, device="cuda").t())
        gapped = torch.nn.Parameter(torch.randn(5, 8, device="cuda")[:, ::2])
        params = [conv, turned, gapped]
        optimizer = admeta.Ranger(params, **flags)
        for _ in range(13):
            for p in params:
                p.grad = torch.randn(p.shape, device="cuda")
            optimizer.step()
        results.append([p.detach() for p in params])
    assert_near(results[0], results[1], 2e-6)


def test_other_streams_are_heeded_in_a_repeated_step() -> None:
    params = make_params()
    optimizer, grads = admeta.AdmetaR(params), make_grads(params, 1)
    for p, g in zip(params, grads[0], strict=True):
        p.grad = g
    for _ in range(6):
        optimizer.step()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        optimizer.step()
    side.synchronize()
    assert optimizer.state[params[0]]["step"].item() == 7


@pytest.mark.parametrize("case", [c for c in DEFAULTS if c.optimizer not in KERNEL_CLASSES], ids=case_id)
def test_bfloat16_state_and_parameters_in_a_captured_step(case: Case) -> None:
    """All implementations take the same random bits, so they differ where float32's last bit decides a rounding."""
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        for flags in ({"fused": True}, {"foreach": True}, {"foreach": False}):
            params = make_params(dtype)
            optimizer = case.create(params, **flags, state_dtype="bfloat16", rounding="stochastic")
            train(optimizer, params, make_grads(params, 13))
            assert {t.dtype for s in optimizer.state.values() for k, t in s.items() if k != "step"} == {torch.bfloat16}
            results.append([p.detach() for p in params])
    captured = make_params()
    lr = torch.tensor(1e-3, device="cuda")
    optimizer = case.create(captured, lr=lr, capturable=True, fused=True, state_dtype="bfloat16")
    eager = make_params()
    reference = case.create(eager, lr=1e-3, fused=True, state_dtype="bfloat16")
    grads = make_grads(captured, 13)
    for p, g in zip(captured, grads[0], strict=True):
        p.grad = g.clone()
    optimizer.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for step in grads[1:]:
        for p, g in zip(captured, step, strict=True):
            p.grad.copy_(g)
        graph.replay()
    train(reference, eager, grads)
    assert_near([p.detach() for p in captured], [p.detach() for p in eager], 1e-6)
    for i in (1, 2):
        assert_near(results[i], results[0], 2e-4)
        assert_near(results[3 + i], results[3], 2e-3)
