"""Several threads run one module at the same time, or replicas of it, as ``DataParallel`` makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

import onnxq
from onnxq import Options
from tests.models import feeds_for
from tests.targets import residual

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

import onnxq.torch as qat

torch.set_num_threads(1)

Tensor = torch.Tensor
THREADS = 4


class Part(torch.nn.Module):
    """A layer that waits before it runs, where it is told to."""

    wait: Callable[[], object] | None = None

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(width, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if Part.wait is not None:
            Part.wait()
        return torch.relu(self.layer(x))


def staggered(modules: Sequence[torch.nn.Module], inputs: list[Tensor]) -> list[Tensor]:
    """Each module in a thread of its own, a part behind the one before: no two are in the same part."""
    barrier = Barrier(THREADS)

    def wait() -> None:
        barrier.wait(timeout=60)

    def run(number: int, module: torch.nn.Module, x: Tensor) -> Tensor:
        for _ in range(number):
            wait()
        result: Tensor = module(x)
        for _ in range(THREADS - number):
            wait()
        return result

    Part.wait = wait
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(run, range(THREADS), modules, inputs))
    finally:
        Part.wait = None


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(Part(3), *(Part(4) for _ in range(THREADS - 1)))


def replica(module: torch.nn.Module) -> torch.nn.Module:
    """As ``torch.nn.parallel.replicate`` makes them: parameters are tensors with a way back to the module's."""
    modules = list(module.modules())
    made: dict[torch.nn.Module, torch.nn.Module] = {part: part._replicate_for_data_parallel() for part in modules}
    for part, copied in made.items():
        for name, child in part._modules.items():
            copied._modules[name] = None if child is None else made[child]
        for name, parameter in part._parameters.items():
            copied._parameters[name] = None
            if parameter is not None:
                del copied._parameters[name]
                object.__setattr__(copied, name, parameter.clone())
        for name, buffer in part._buffers.items():
            copied._buffers[name] = None if buffer is None else buffer.clone()
    return made[module]


def test_every_thread_is_in_a_part_of_its_own() -> None:
    plain, inputs = net(), [torch.randn(1, 3, 12, 12) for _ in range(THREADS)]
    module = qat.prepare(plain, (inputs[0],), backend="tensorrt", batches=inputs).eval()
    wanted = [module(x) for x in inputs]
    several: list[list[torch.nn.Module]] = [[module] * THREADS, [replica(module) for _ in range(THREADS)]]
    for modules in several:
        found = staggered(modules, inputs)  # a layer without quantizers would be warned of
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        torch.cat(found).square().sum().backward()
        assert all(p.grad is not None for p in module.parameters() if p.requires_grad)
        module.zero_grad()
    assert not [hook for part in plain.modules() for hook in (*part._forward_hooks, *part._forward_pre_hooks)]


def test_a_run_of_the_plain_module_beside_it_stays_plain() -> None:
    plain, x = net(), torch.randn(1, 3, 12, 12)
    module = qat.prepare(plain, (x,), backend="tensorrt", batches=[x]).eval()
    wanted = [module(x), plain(x)] * 2
    assert not torch.equal(wanted[0], wanted[1])
    found = staggered([module, plain] * 2, [x] * THREADS)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_replicas_of_a_models_module_compute_the_same() -> None:
    feeds = feeds_for(residual(), samples=THREADS)
    module = onnxq.quantize(residual(), feeds, options=Options(placement="all")).torch().eval()
    for feed in feeds:
        x = torch.from_numpy(feed["x"])
        found = replica(module)(x)
        assert torch.equal(found, module(x))
    found.square().sum().backward()
    assert all(p.grad is not None for p in module.weights.parameters())
