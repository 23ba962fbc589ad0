"""Inputs for a model of which there are no data: random numbers, in the ranges that its own quantizers tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import ModelError, OnnxqError
from onnxq.graph.values import constant_array
from onnxq.ort.inputs import InputInfo, inputs_of
from onnxq.quantized import Quantized

__all__ = ["on_random_inputs", "random_inputs"]

_SAMPLES = 3
_SECONDS = 2.0
"""A model that takes longer for one sample is run on no more."""
_SIZES = (16, 64, 224, 512, 1)
"""Sizes to try, in this order, for free dimensions other than the first, which is 1."""
_CONTRASTS = (1.0, 0.5, 0.25)
"""Shares of a range that samples fill, in turn."""
_MOVES = frozenset({"Cast", "Flatten", "Identity", "Pad", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_TOKENS = 2
"""Numbers that integers are drawn from, 0 and 1, where no table tells how many rows there are."""


Result = TypeVar("Result")


def on_random_inputs(
    inside: Quantized, run: Callable[[Mapping[str, NDArray[Any]]], Result]
) -> list[tuple[Mapping[str, NDArray[Any]], Result]]:
    """Feeds for a quantized model in the ranges that its quantizers hold, and what is made of them.

    Args:
        inside: the float model and the numbers.
        run: gets a feed after the other; where a free dimension of it has a size that the model cannot run with, the
            first of the next size. Then with empty caches: the mask of a decoder's tokens is as long as its cache and
            the new tokens together. At last all of that with zeros for integers of more than 8 bits, which are the only
            places that there are in a graph of one node.

    Raises:
        OnnxqError: there are no random numbers for an input, or the model runs with no size of its free dimensions.
    """
    numbers = inside.qparams
    sites = [site for site in inside.plan.sites if site.role == "activation"]
    ranges = {site.tensor: (float(numbers[site.name].lo.min()), float(numbers[site.name].hi.max())) for site in sites}
    refused: OnnxqError | None = None
    inputs = inputs_of(inside.model)
    free = any(not isinstance(dim, int) for info in inputs for dim in info.shape or ())
    sizes = [(size, frozenset[str]()) for size in (_SIZES if free else _SIZES[:1])]
    if caches := _of_caches(inputs):
        sizes += [(size, caches) for size in _SIZES]
    whole = [info.name for info in inputs if info.dtype.kind in "iu" and info.dtype.itemsize > 1]
    for zero, (size, empty) in product((False, True) if whole else (False,), sizes):
        found: list[tuple[Mapping[str, NDArray[Any]], Result]] = []
        try:
            for feeds in random_inputs(inside.model, ranges, size, _SAMPLES, empty):
                feeds.update({name: np.zeros_like(feeds[name]) for name in whole if zero})
                start = time.perf_counter()
                found.append((feeds, run(feeds)))
                if time.perf_counter() - start > _SECONDS:
                    break
        except OnnxqError as error:
            refused = refused or error
            continue
        return found
    assert refused is not None
    raise refused


def _of_caches(inputs: Sequence[InputInfo]) -> frozenset[str]:
    """Names of free dimensions, the first apart, that inputs of floats have beside inputs of integers without them."""
    named = {kind: set[str]() for kind in "fi"}
    for info in inputs:
        names = {dim for dim in (info.shape or ())[1:] if isinstance(dim, str) and dim}
        named["f" if info.dtype.kind == "f" else "i"] |= names
    return frozenset(named["f"] - named["i"]) if named["i"] else frozenset()


def random_inputs(
    model: ir.Model,
    ranges: Mapping[str, tuple[float, float]],
    size: int,
    count: int,
    empty: Container[str] = (),
) -> Iterator[dict[str, NDArray[Any]]]:
    """Samples with numbers in the range of each input, the same at every call.

    Args:
        model: float, shapes inferred.
        ranges: lowest and highest number of tensors, as quantizers hold them. An input has that of the tensor that it
            becomes by moving its elements, else normal random numbers.
        size: of free dimensions other than the first.
        count: how many samples.
        empty: names of free dimensions that are 0 instead.

    Raises:
        ModelError: an input is no tensor of numbers, or its rank is unknown.
    """
    values = {value.name: value for value in model.graph.inputs}
    random = np.random.default_rng(0)
    for index in range(count):
        feeds: dict[str, NDArray[Any]] = {}
        for info in inputs_of(model):
            if info.dtype.kind not in "fbiu" or info.container or info.shape is None:
                raise ModelError("no random values can be made for its type", where=f"input '{info.name}'")
            shape = tuple(
                d if isinstance(d, int) and d >= 0 else 1 if not axis else 0 if d in empty else size
                for axis, d in enumerate(info.shape)
            )
            if info.dtype.kind == "f":
                found = _reached(values[info.name], ranges)
                feeds[info.name] = _floats(random, shape, found, _CONTRASTS[index % 3]).astype(info.dtype)
            elif info.dtype.kind == "b":
                feeds[info.name] = np.ones(shape, np.bool_)
            else:
                most = 256 if info.dtype.itemsize == 1 else _rows(values[info.name])
                feeds[info.name] = random.integers(0, min(most, np.iinfo(info.dtype).max), shape).astype(info.dtype)
        yield feeds


def _floats(
    random: np.random.Generator, shape: tuple[int, ...], found: tuple[float, float] | None, contrast: float
) -> NDArray[Any]:
    if found is None:
        return random.normal(size=shape)
    low, high = found
    middle, half = (low + high) / 2, (high - low) / 2 * contrast
    return random.uniform(middle - half, middle + half, shape)


def _reached(value: ir.Value, ranges: Mapping[str, tuple[float, float]]) -> tuple[float, float] | None:
    """The range of a tensor, or of the first behind it that holds the same numbers and has one."""
    seen, left = {value}, [value]
    while left:
        now = left.pop(0)
        if (found := ranges.get(now.name or "")) is not None:
            return found
        moved = [use.node.outputs[0] for use in now.uses() if use.idx == 0 and use.node.op_type in _MOVES]
        left += [v for v in moved if v not in seen]
        seen.update(moved)
    return None


def _rows(value: ir.Value) -> int:
    """How many rows the smallest table has of which an input takes some."""
    seen, left, found = {value}, [value], []
    while left:
        now = left.pop(0)
        for use in now.uses():
            node = use.node
            if node.op_type == "Gather" and use.idx == 1:
                table = constant_array(node.inputs[0])
                if table is not None and table.ndim:
                    found.append(table.shape[node.attributes.get_int("axis", 0)])
            elif node.op_type in _MOVES and use.idx == 0 and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                left.append(node.outputs[0])
    return min(found, default=_TOKENS)
