"""A quantized ONNX model as a module of torch, for a training loop of the user's own.

::

    module = quantized.torch()                       # from onnxq.quantize, onnxq.deploy or onnxq.read
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
    ...                                              # loss(module(images), labels).backward(), optimizer.step()
    quantized.load_torch(module).save("trained.onnx")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from onnxq.errors import ModelError, OptionError
from onnxq.graph.traverse import all_constants
from onnxq.graph.values import constant_array
from onnxq.plan import Site
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.spec import PerBlock
from onnxq.torch.biases import rounded_bias
from onnxq.torch.executor import Executor
from onnxq.torch.fake_quantize import Grid, fake_quantize
from onnxq.torch.learned import learned_constants
from onnxq.torch.maker import Maker
from onnxq.torch.places import quantized_places, shared_numbers
from onnxq.torch.quantizers import Quantizer
from onnxq.torch.quantizers.ema import EMA

__all__ = ["GraphModule"]

Tensor = torch.Tensor

_WIDEST = 16
"""Bits up to which float32 holds every integer of a grid."""


class GraphModule(torch.nn.Module):
    """The graph of a quantized model, its weights, biases, scales and zero points parameters.

    In evaluation mode it computes what the written model does. Zero points are learned on asymmetric grids; ranges that
    follow from an operator's definition and grids of blocks stay as they are.

    Args:
        quantized: where training starts; left unchanged.
        weight_quantizer: see :func:`onnxq.torch.prepare`.
        act_quantizer: see there.
        weight_observer: see there; only quantizers whose range follows the values have a use for it.
        act_observer: the same.

    Attributes:
        source: the model it was made of.
        weights: what is trained of the graph, by the names of the ONNX model, ``.`` and ``/`` written as ``_``.
        quantizers: by the names of the tensors.

    Raises:
        ModelError: it carries no quantizers, or operators that torch cannot run; all of them are named.
        OptionError: a quantizer is unknown or not for the grid of a tensor.
    """

    def __init__(
        self,
        quantized: Quantized,
        *,
        weight_quantizer: str | None = None,
        act_quantizer: str | None = None,
        weight_observer: str = "mse",
        act_observer: str = "ema_mse",
    ) -> None:
        super().__init__()
        if not quantized.qparams:
            raise ModelError("the model carries no quantizers", hint=_nothing_quantized(quantized))
        name = quantized.backend.name
        self.source = quantized
        self.weights, self.constants, self.quantizers = torch.nn.Module(), torch.nn.Module(), torch.nn.ModuleDict()
        self._makers = (Maker(act_quantizer, act_observer, name), Maker(weight_quantizer, weight_observer, name))
        self._executor = Executor(quantized.model)
        self._trained, self._untrained = self._take_constants()
        self._roots = shared_numbers(quantized.plan)
        self._sites: dict[str, str] = {}  # root → its quantizer
        groups: dict[str, list[Site]] = {}
        for site in quantized.plan.sites:
            groups.setdefault(self._roots[site.name], []).append(site)
        own = Counter(site.tensor for site in quantized.plan.sites if site.tied_to is None)
        constants = all_constants(quantized.model)
        for site in quantized.plan.sites:
            if site.name in quantized.qparams and self._roots[site.name] == site.name and _has_grid(site):
                group = groups[site.name]
                constant = all(s.role != "activation" for s in group)
                array = constant_array(constants[site.tensor]) if constant else None
                key = _plain(site.name, self.quantizers)
                self.quantizers[key] = self._quantizer(group, site, array, own[site.tensor])
                self._sites[site.name] = key
        edges, behind = quantized_places(quantized.model, quantized.plan)
        self._edges = {edge: root for edge, root in edges.items() if root in self._sites}
        self._behind = {tensor: root for tensor, root in behind.items() if root in self._sites}
        self._biases = dict(self._find_biases())

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies, without the executor: it follows from the model."""
        return {name: value for name, value in self.__dict__.items() if name != "_executor"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._executor = Executor(self.source.model)
        self._executor.parameters, self._executor.buffers = {}, {}

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        """The outputs: a tensor, or a tuple where there are several.

        Args:
            inputs: in the order of the ONNX model.
            named: by their names there.
        """
        names = self._executor.inputs
        if len(inputs) > len(names):
            raise OptionError(f"{len(inputs)} tensors for {len(names)} inputs", where="the module's inputs")
        parts = {root: self.quantizers[key] for root, key in self._sites.items()}
        constants: dict[str, Tensor] = {  # of a replica of DataParallel they are no parameters
            tensor: getattr(self.weights, key) for tensor, key in self._trained.items()
        }
        for tensor, (data, weight) in self._biases.items():
            bias = constants[tensor]
            scales = (self._quantizer_of(root).numbers()[0].detach() for root in (data, weight))
            constants[tensor] = rounded_bias(bias.reshape(-1), *scales).reshape(bias.shape)
        constants |= {tensor: self.constants.get_buffer(key) for tensor, key in self._untrained.items()}
        found = self._executor.run(
            {**dict(zip(names, inputs, strict=False)), **named},
            weights=constants,
            quantizers={edge: parts[root] for edge, root in self._edges.items()},
        )
        results = tuple(parts[self._behind[n]](x) if n in self._behind else x for n, x in found.items())
        return results[0] if len(results) == 1 else results

    def observing(self) -> list[tuple[str, Quantizer]]:
        """Its quantizers with their names."""
        return [(name, q) for name, q in self.quantizers.items() if isinstance(q, Quantizer)]

    def arrays(self) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        """What is trained of the graph as it is now, by the names of the ONNX model."""
        found: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = {}
        on_grid = {s.tensor: s for s in self.source.plan.sites if s.role != "activation"}
        with torch.no_grad():
            for tensor, key in self._trained.items():
                value = self.weights.get_parameter(key)
                root = self._roots[on_grid[tensor].name] if tensor in on_grid else ""
                part = self.quantizers[self._sites[root]] if root in self._sites else None
                given = part.grid_input(value) if isinstance(part, Quantizer) else value
                found[tensor] = given.detach().cpu().numpy().astype(np.float32)
        return found

    def numbers(self) -> dict[str, QParams]:
        """Scales and zero points as they are now, by site; those of biases that follow from them are left out."""
        plan, given = self.source.plan, self.source.qparams
        found: dict[str, QParams] = {}
        for site in plan.sites:
            root = self._roots[site.name]
            if root not in self._sites or site.name not in given:
                continue
            part = self.quantizers[self._sites[root]]
            assert isinstance(part, (Quantizer, _Blocks))
            found[site.name] = replace(part.qparams(), spec=given[site.name].spec)
        return found

    def _take_constants(self) -> tuple[dict[str, str], dict[str, str]]:
        """Make the executor's constants parameters and buffers: tensor → name here, for both."""
        learned = learned_constants(self.source)
        trained: dict[str, str] = {}
        untrained: dict[str, str] = {}
        for name, tensor in {**self._executor.parameters, **self._executor.buffers}.items():
            if name in learned and tensor.dtype is torch.float32:
                trained[name] = _plain(name, self.weights._parameters)
                self.weights.register_parameter(trained[name], torch.nn.Parameter(tensor))
            else:
                untrained[name] = _plain(name, self.constants._buffers)
                self.constants.register_buffer(untrained[name], tensor, persistent=False)
        self._executor.parameters, self._executor.buffers = {}, {}
        return trained, untrained

    def _quantizer(
        self, group: Sequence[Site], site: Site, array: NDArray[np.generic] | None, ways: int
    ) -> torch.nn.Module:
        """What quantizes a group of sites with the numbers of one of them.

        Args:
            group: sites that share their numbers.
            site: whose numbers they are.
            array: what it holds where all of them are constants.
            ways: quantizers that its tensor has.
        """
        qp, constant = self.source.qparams[site.name], array is not None
        if isinstance(qp.spec.granularity, PerBlock):
            if array is None:
                raise ModelError(f"activation {site.tensor!r} has a scale a block", hint="Only weights may")
            return _Blocks(qp, array.shape)
        maker = Maker("lsq", "mse", self.source.backend.name) if site.role == "bias" else self._makers[constant]
        made = maker.make(
            qp.spec,
            qp.scale.size,
            weight=constant,
            fixed=next((s.fixed for s in group if s.fixed is not None), None),
            shape=None if array is None or len(group) > 1 else array.shape,
        )
        if ways > 1 and type(made).grid_input is not Quantizer.grid_input:
            why = f"{site.tensor!r} is quantized in {ways} ways"
            raise OptionError(why, where="weight_quantizer", hint="Use 'lsq'")
        if array is None:
            made.start(qp)
        else:
            made.start_weight(qp, torch.from_numpy(np.array(array, np.float32)))
        if isinstance(made, EMA):  # it goes on from here
            made.observer.low, made.observer.high = qp.lo.astype(np.float64), qp.hi.astype(np.float64)
        return made

    def _quantizer_of(self, root: str) -> Quantizer:
        found = self.quantizers[self._sites[root]]
        assert isinstance(found, Quantizer)
        return found

    def _find_biases(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Biases that the target stores in whole units of data scale times weight scale, with the two sites."""
        plan = self.source.plan
        for site in plan.sites:
            if site.role == "bias" and site.factors is not None and site.tensor in self._trained:
                data, weight = (self._roots[name] for name in site.factors)
                if data in self._sites and weight in self._sites:
                    yield site.tensor, (data, weight)


class _Blocks(torch.nn.Module):
    """The grid of a weight with a scale a block, which is not learned; the weight is."""

    def __init__(self, qp: QParams, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.qp = qp
        grid = Grid.of(qp, shape)
        for name in ("scale", "zero", "low", "high"):
            self.register_buffer(name, getattr(grid, name))

    def forward(self, x: Tensor) -> Tensor:
        return fake_quantize(x, Grid(*(self.get_buffer(name) for name in ("scale", "zero", "low", "high"))))

    def qparams(self) -> QParams:
        return self.qp


def _nothing_quantized(quantized: Quantized) -> str:
    """What to do where nothing of a model is quantized: it may have been, and stayed float."""
    kept = quantized.plan.kept_float
    if not kept:
        return "Quantize it first, with onnxq.quantize"
    speed = "where that is for speed, Options(placement='all') quantizes it all the same"
    return f"All of it stayed float, {kept[0].node!r} as {kept[0].reason}; {speed}"


def _has_grid(site: Site) -> bool:
    """Whether a site has numbers of its own that matter; a bias of 32 bits is as good as float."""
    return site.role != "bias" or (site.factors is None and site.spec.bits <= _WIDEST)


def _plain(name: str, taken: Any) -> str:
    """A name that torch takes for a parameter or module, not taken yet."""
    base = name.replace(".", "_").replace("/", "_") or "_"
    key, count = base, 1
    while key in taken:
        count += 1
        key = f"{base}_{count}"
    return key
