"""What rounding to 8 bits explains: the float model, its weights and tensors disturbed by steps of 8-bit grids."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.contract import infer, sqnr
from tests.fuzzing.inside import Noise
from tests.fuzzing.scope import kinds_of

__all__ = ["NONE", "Steps", "explained"]

Array = NDArray[Any]

_DRAWS = 6
_FLOATS = (np.float32, np.float16, np.float64)
NONE = -1e9
"""dB of what has another shape, or is no number."""


@dataclass(frozen=True)
class Steps:
    """What a target asks of steps.

    Attributes:
        least: of every tensor.
        own: of some tensors, at least.
        shared: groups of tensors that have one step, the largest of theirs.
        near: groups of tensors whose steps are a 128th of the largest of theirs at least.
    """

    least: float = 0.0
    own: Mapping[str, float] = field(default_factory=dict)
    shared: Sequence[Collection[str]] = ()
    near: Sequence[Collection[str]] = ()

    def of(self, natural: Mapping[str, float]) -> dict[str, float]:
        """The steps of tensors, from what their ranges alone ask for."""
        steps = {name: max(step, self.least, self.own.get(name, 0.0)) for name, step in natural.items()}
        before: dict[str, float] = {}
        while before != steps:
            before = dict(steps)
            for group in self.shared:
                largest = max((steps[name] for name in group if name in steps), default=0.0)
                steps |= {name: largest for name in group if name in steps}
            for group in self.near:
                least = max((steps[name] for name in group if name in steps), default=0.0) / 128
                steps |= {name: max(steps[name], least) for name in group if name in steps}
        return steps


def explained(
    model: onnx.ModelProto,
    feeds: Sequence[dict[str, Array]],
    times: float = 1.0,
    *,
    rounded: bool = False,
    asked: Steps | None = None,
) -> dict[str, float]:
    """dB of each float output of the disturbed float model; the worst of some draws.

    Half of the draws add uniform noise of one step to the weights and to every tensor, the other half the error that
    rounding to about such steps makes.

    Args:
        model: the float model.
        feeds: what it is run on.
        times: steps of noise, or steps between the numbers that are rounded to.
        rounded: round the tensors as they are with all that was disturbed before them, so that what is small is 0.
        asked: what the target asks of steps.

    Returns:
        Output → dB where the float model's numbers are finite; -1e9 where a shape changes or one of those is no number.
    """
    tensors = _tensors(model, feeds)
    fixed = {node.output[0] for node in model.graph.node if node.op_type in ("HardSigmoid", "Sigmoid", "Softmax")}
    steps = {name: _step(arrays, fixed=name in fixed) for name, arrays in tensors.items()}
    steps = {name: step * times for name, step in (asked or Steps()).of(steps).items()}
    expected = infer(model, feeds, optimize=False)
    floats = [name for name, arrays in expected.items() if all(a.dtype.kind == "f" for a in arrays)]
    worst = dict.fromkeys(floats, float("inf"))
    for draw in range(_DRAWS):
        rng = np.random.default_rng(draw)
        grids = {name: step * rng.uniform(0.8, 1.25) for name, step in steps.items()} if draw % 2 else {}
        really = {name: grid for name, grid in grids.items() if rounded and tensors[name][0].dtype.type(grid) > 0}
        noise = {
            name: [_noise(array, rng, steps[name], grids.get(name)) for array in arrays]
            for name, arrays in tensors.items()
            if name not in really
        }
        fed = [{**feed, **{f"{n}__noise": arrays[k] for n, arrays in noise.items()}} for k, feed in enumerate(feeds)]
        try:
            noisy = infer(_disturbed(model, tensors, really, rng, times), fed, optimize=False)
        except Exception:  # onnxruntime's own: noise changed a shape
            return dict.fromkeys(floats, NONE)
        for name in floats:
            pairs = list(zip(noisy[name], expected[name], strict=True))
            sound = all(a.shape == b.shape and np.isfinite(a[np.isfinite(b)]).all() for a, b in pairs)
            worst[name] = min(worst[name], sqnr(expected[name], noisy[name]) if sound else NONE)
    return worst


def _tensors(model: onnx.ModelProto, feeds: Sequence[dict[str, Array]]) -> dict[str, list[Array]]:
    """The float tensors of the main graph that nodes make, and the inputs, for each sample."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    given = {name for feed in feeds for name in feed}
    skipped = ("Constant", "Identity")
    made = [name for node in model.graph.node if node.op_type not in skipped for name in node.output if name]
    del bare.graph.output[:]
    bare.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    found = infer(bare, feeds, optimize=False)
    found |= {name: [np.asarray(feed[name]) for feed in feeds] for name in given}
    return {name: arrays for name, arrays in sorted(found.items()) if all(a.dtype in _FLOATS for a in arrays)}


def _step(arrays: Sequence[Array], *, fixed: bool) -> float:
    """One 255th of the range, zero included, of what is finite."""
    known = [a[np.isfinite(a)] for a in arrays]
    spans = [max(float(a.max()), 0) - min(float(a.min()), 0) for a in known if a.size]
    return (1.0 if fixed else max(spans, default=0.0)) / 255


def _noise(array: Array, rng: np.random.Generator, step: float, grid: float | None) -> Array:
    """Uniform noise of a step, or what rounding an array to a grid does to it."""
    if not grid:
        return rng.uniform(-step / 2, step / 2, array.shape).astype(array.dtype)
    exact = np.where(np.isfinite(array), array.astype(np.float64), 0.0)
    return np.asarray(np.round(exact / grid) * grid - exact).astype(array.dtype)


def _disturbed(
    model: onnx.ModelProto,
    tensors: dict[str, list[Array]],
    grids: dict[str, float],
    rng: np.random.Generator,
    times: float,
) -> onnx.ModelProto:
    """The model with noise in its weights, and its tensors rounded to a grid where they have one, else with an input
    for the noise that is added to them."""
    noisy = onnx.ModelProto()
    noisy.CopyFrom(model)
    graph = noisy.graph

    sizes = set(_sizes(graph))

    def weight(name: str, tensor: onnx.TensorProto) -> None:
        array = numpy_helper.to_array(tensor)
        if array.dtype in _FLOATS and array.size > 1 and name not in sizes:
            step = float(np.abs(array).max()) / 127 * times
            changed = (array + rng.uniform(-step / 2, step / 2, array.shape)).astype(array.dtype)
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))

    constants = [node for node in graph.node if node.op_type == "Constant"]
    values = [(node.output[0], a.t) for node in constants for a in node.attribute if a.HasField("t")]
    for name, tensor in (*((tensor.name, tensor) for tensor in graph.initializer), *values):
        weight(name, tensor)  # a weight is one in either form
    Noise(kinds_of(model), model.opset_import[0].version, times, rng, weight).disturb_inside(graph)
    nodes: list[onnx.NodeProto] = []

    def disturb(name: str, clean: str, new: str) -> None:
        if name not in grids:
            nodes.append(helper.make_node("Add", [clean, f"{name}__noise"], [new]))
            return
        kind = tensors[name][0].dtype
        for what, value in (("grid", grids[name]), ("half", 0.5)):
            graph.initializer.append(numpy_helper.from_array(np.asarray(value, kind), f"{name}__{what}"))
        for op, inputs, output in (
            ("Div", [clean, f"{name}__grid"], f"{name}__ratio"),
            ("Add", [f"{name}__ratio", f"{name}__half"], f"{name}__above"),
            ("Floor", [f"{name}__above"], f"{name}__whole"),
            ("Mul", [f"{name}__whole", f"{name}__grid"], new),
        ):
            nodes.append(helper.make_node(op, inputs, [output]))

    renamed = {info.name: f"{info.name}__noisy" for info in graph.input if info.name in tensors}
    for name, new in renamed.items():
        disturb(name, name, new)
    for node in graph.node:
        _rename(node, renamed)
        made = onnx.NodeProto.FromString(node.SerializeToString())
        nodes.append(made)
        for position, name in enumerate(node.output):
            if name in tensors:
                made.output[position] = f"{name}__clean"
                disturb(name, f"{name}__clean", name)
    for name, arrays in tensors.items():
        if name not in grids:
            kind = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
            graph.input.append(helper.make_tensor_value_info(f"{name}__noise", kind, None))
    del graph.value_info[:]
    del graph.node[:]
    graph.node.extend(nodes)
    return noisy


def _sizes(graph: onnx.GraphProto) -> Iterator[str]:
    """Float constants that say how large something becomes, those inside of nodes included."""
    behind = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity"}
    for node in graph.node:
        for name in node.input[1:] if node.op_type in ("Resize", "Upsample") else ():
            yield from (name, behind.get(name, name))
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _sizes(attribute.g)


def _rename(node: onnx.NodeProto, renamed: dict[str, str]) -> None:
    node.input[:] = [renamed.get(name, name) for name in node.input]
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                _rename(inner, renamed)
