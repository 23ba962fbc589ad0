"""Models with channels that a rotation passes through, some of which stand out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tests.models import build, normal

__all__ = ["blocks", "bottlenecks"]

WIDTH = 32


def bottlenecks(*, outliers: bool, blocks: int = 3) -> onnx.ModelProto:
    """Inverted residuals: 1x1 to more channels, ReLU, 1x1 back, added; a few weights and a channel stand out."""
    random = np.random.default_rng(3)
    constants: dict[str, Any] = {"u": normal(WIDTH, 3, 3, 3), "ub": normal(WIDTH)}
    if outliers:
        constants["u"][5] *= 12.0
    lines, before = ["s0 = Conv <pads = [1, 1, 1, 1]> (x, u, ub)"], "s0"
    for block in range(blocks):
        e, p = normal(3 * WIDTH, WIDTH, 1, 1, seed=block), normal(WIDTH, 3 * WIDTH, 1, 1, seed=50 + block)
        if outliers:
            e = np.where(random.random(e.shape) < 0.02, 8.0 * e, e)
            e[:, 5] /= 12.0
        constants |= {f"e{block}": e.astype(np.float32), f"p{block}": (0.3 * p).astype(np.float32)}
        lines += [
            f"a{block} = Conv ({before}, e{block})",
            f"r{block} = Relu (a{block})",
            f"b{block} = Conv (r{block}, p{block})",
            f"s{block + 1} = Add ({before}, b{block})",
        ]
        before = f"s{block + 1}"
    constants |= {"w": normal(10, WIDTH, 1, 1, seed=99)}
    lines += [f"h = Conv ({before}, w)", "y = GlobalAveragePool (h)"]
    return build("(float[1, 3, 8, 8] x) => (float[1, 10, 1, 1] y) {" + "\n".join(lines) + "}", **constants)


def blocks(outlier: float, count: int = 2) -> onnx.ModelProto:
    """Blocks that add to what they read normalized; the normalizations make one channel stand out."""
    lines = ["s0 = MatMul (x, first)"]
    constants: dict[str, Any] = {"first": normal(12, WIDTH), "last": normal(WIDTH, 10)}
    for i in range(count + 1):
        constants |= {f"g{i}": 1.0 + 0.2 * normal(WIDTH, seed=i), f"b{i}": 0.2 * normal(WIDTH, seed=9 + i)}
        constants[f"g{i}"][3] *= outlier
        lines.append(f"n{i} = LayerNormalization (s{i}, g{i}, b{i})")
        if i < count:
            up, down = normal(WIDTH, 2 * WIDTH, seed=20 + i), normal(2 * WIDTH, WIDTH, seed=30 + i)
            up[3] /= outlier
            constants |= {f"u{i}": up, f"d{i}": down}
            lines += [f"h{i} = MatMul (n{i}, u{i})", f"r{i} = Relu (h{i})", f"d_{i} = MatMul (r{i}, d{i})"]
            lines.append(f"s{i + 1} = Add (s{i}, d_{i})")
    constants["last"][3] /= outlier
    lines.append(f"y = MatMul (n{count}, last)")
    return build("(float[1, 16, 12] x) => (float[1, 16, 10] y) {" + "\n".join(lines) + "}", **constants)
