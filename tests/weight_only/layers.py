"""A small model of all that is stored in blocks, data for it, and what else tests of weights in blocks share."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx

from tests.models import build, normal
from tests.running import infer

__all__ = ["LOSS", "digests", "feeds_of_layers", "layers", "run", "save"]


LOSS = {4: 12.0, 8: 35.0}
"""dB that rounding weights to so many bits keeps at least, in these models."""


def layers() -> onnx.ModelProto:
    """A table, a MatMul, both kinds of Gemm, a Conv, and inputs that are no multiple of any block."""
    return build(
        """(int64[N] tokens, float[N, 72] x) => (float[N, 8] y, float[N, 40] g) {
            e = Gather (table, tokens)
            s = Add (e, x)
            m = MatMul (s, a)
            r = Relu (m)
            g = Gemm <transB = 1> (r, b, c)
            h = Gemm (g, d)
            y = Add (h, one)
        }""",
        table=normal(50, 72, scale=1.0),
        a=normal(72, 40, seed=1),
        b=normal(40, 40, seed=2),
        c=normal(40, seed=3, scale=1.0),
        d=normal(40, 8, seed=4),
        one=normal(8, seed=5, scale=1.0),
    )


def feeds_of_layers(samples: int = 6, rows: int = 32) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((9, 72))
    return [
        {
            "tokens": rng.integers(0, 50, rows),
            "x": (rng.standard_normal((rows, 9)) @ mixing).astype(np.float32),
        }
        for _ in range(samples)
    ]


def run(path: Path, feeds: dict[str, np.ndarray], *, optimize: bool = False) -> dict[str, np.ndarray]:
    return {name: arrays[0] for name, arrays in infer(path, [feeds], optimize=optimize).items()}


def save(proto: onnx.ModelProto, path: Path, *, external: bool = False) -> Path:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)  # onnx.save takes the data out of what it is given
    onnx.save(copy, path, save_as_external_data=external, size_threshold=1024, location=f"{path.name}.weights")
    return path


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.is_file()}
