"""Small nets that pick among what they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from tests.models import build, f32, normal
from tests.running import open_session

CORNERS = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(1, 64, 2).astype(np.float32)


def detector() -> onnx.ModelProto:
    """Boxes around points of a grid, most of whose scores are all but equal."""
    return build(
        """(float[1, 16, 8, 8] x) => (float[K, 4] found_boxes, float[K] found_scores) {
            [body] f = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (f)
            [second] g = Conv <pads = [1, 1, 1, 1]> (r, v)
            q = Relu (g)
            [size] b = Conv (q, wb)
            sizes = Reshape (b, as_sizes)
            near = Abs (sizes)
            low = Sub (corners, near)
            high = Add (corners, near)
            boxes = Concat <axis = 2> (low, high)
            [score] s = Conv (q, ws)
            logits = Reshape (s, as_scores)
            scores = Sigmoid (logits)
            at = NonMaxSuppression (boxes, scores, most, overlap, least)
            which = Gather <axis = 1> (at, two)
            flat = Squeeze (boxes, zero)
            found_boxes = Gather <axis = 0> (flat, which)
            row = Reshape (scores, all)
            found_scores = Gather <axis = 0> (row, which)
        }""",
        w=normal(16, 16, 3, 3),
        v=normal(16, 16, 3, 3, seed=4),
        wb=normal(2, 16, 1, 1, seed=1),
        ws=normal(1, 16, 1, 1, seed=2),
        as_sizes=np.array([1, 64, 2]),
        as_scores=np.array([1, 1, 64]),
        corners=CORNERS,
        most=np.array([20]),
        overlap=f32([0.5]),
        least=f32([0.5]),
        two=np.array(2),
        zero=np.array([0]),
        all=np.array([-1]),
    )


def labels() -> onnx.ModelProto:
    """A picture's places told apart, and nothing else."""
    return build(
        """(float[1, 16, 8, 8] x) => (int64[1, 8, 8] y) {
            [body] f = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (f)
            [second] logits = Conv <pads = [1, 1, 1, 1]> (r, v)
            y = ArgMax <axis = 1, keepdims = 0> (logits)
        }""",
        w=normal(16, 16, 3, 3),
        v=normal(5, 16, 3, 3, seed=4),
    )


def picked_from(
    model: onnx.ModelProto | Path, name: str, feeds: Sequence[Mapping[str, np.ndarray]], *, optimize: bool = True
) -> list[np.ndarray]:
    """What NonMaxSuppression reads in place of a tensor of the float model."""
    copy = onnx.ModelProto()
    copy.CopyFrom(onnx.load(model) if isinstance(model, Path) else model)
    (node,) = (node for node in copy.graph.node if node.op_type == "NonMaxSuppression")
    read = node.input[0 if name == "boxes" else 1]
    copy.graph.output.append(onnx.helper.make_tensor_value_info(read, onnx.TensorProto.FLOAT, None))
    session = open_session(copy, optimize=optimize)
    return [np.asarray(session.run([read], feed)[0], np.float64) for feed in feeds]
