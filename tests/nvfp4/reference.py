"""NVFP4 files in onnx's reference evaluator, with TensorRT's operator by ml_dtypes: nothing of it is onnxq's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tests.installed import needs
from tests.models import build, normal

__all__ = ["REFERENCE", "computed", "feeds_of", "mlp"]

REFERENCE = needs("onnx", "1.19")
"""What :func:`computed` needs: older references have other types of arrays."""


class TRT_FP4DynamicQuantize(OpRun):  # noqa: N801, its name is the operator's
    """Largest magnitudes over 6 as E4M3 times the unit, numbers over these as E2M1."""

    op_domain = "trt"

    def _run(self, x: Any, unit: Any, axis: int, block_size: int, scale_type: int) -> tuple[Any, Any]:
        assert (axis, block_size, scale_type) == (-1, 16, onnx.TensorProto.FLOAT8E4M3FN)
        blocks = x.reshape(*x.shape[:-1], -1, block_size)
        exact = np.abs(blocks).max(axis=-1) / np.float32(6) / unit
        scale = np.minimum(exact, 448).astype(ml_dtypes.float8_e4m3fn)
        held = np.maximum(scale.astype(np.float32) * unit, np.finfo(np.float32).tiny)[..., None]
        numbers = np.clip(blocks / held, -6, 6).astype(ml_dtypes.float4_e2m1fn)
        return numbers.reshape(x.shape), scale


def computed(path: Path, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """The outputs of a file."""
    found = ReferenceEvaluator(onnx.load(path), new_ops=[TRT_FP4DynamicQuantize]).run(None, feeds)
    return [np.asarray(array) for array in found]


def mlp() -> onnx.ModelProto:
    """A MatMul and both kinds of Gemm; the first two read the same tensor."""
    return build(
        """(float[N, 64] x) => (float[N, 40] y, float[N, 48] z) {
            a = MatMul (x, w)
            z = Gemm <transB = 1> (x, v, c)
            r = Relu (a)
            y = Gemm (r, u)
        }""",
        w=normal(64, 96),
        v=normal(48, 64, seed=1),
        c=normal(48, seed=2),
        u=normal(96, 40, seed=3),
    )


def feeds_of(samples: int = 6, rows: int = 32) -> list[dict[str, NDArray[np.float32]]]:
    """Data of it, of 16 dimensions."""
    random = np.random.default_rng(0)
    mixing = random.standard_normal((16, 64)) * np.exp(random.standard_normal(64))
    return [{"x": (random.standard_normal((rows, 16)) @ mixing).astype(np.float32)} for _ in range(samples)]
