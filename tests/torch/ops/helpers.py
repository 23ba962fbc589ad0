"""How operators are compared with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from tests.models import build
from tests.running import open_session

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

__all__ = ["assert_same", "case"]

torch.set_num_threads(1)

Array = NDArray[Any]
_LIMIT = 1e-5


def case(text: str, feeds: dict[str, Array], *, opset: int = 18, **constants: Array) -> None:
    """Hold a graph against onnxruntime: relative error of at most 1e-5, types and shapes equal.

    Args:
        text: signature and nodes.
        feeds: values of the inputs.
        opset: of the standard operators.
        **constants: initializers.
    """
    model = build(text, opset=opset, ir_version=8, domains=None, **constants)
    assert_same(ir.serde.deserialize_model(model), model.SerializeToString(), feeds)


def assert_same(model: ir.Model, serialized: bytes, feeds: dict[str, Array], limit: float = _LIMIT) -> None:
    """Run a model here and there."""
    from onnxq.torch.executor import Executor

    session = open_session(serialized, optimize=False)
    names = [output.name for output in session.get_outputs()]
    wanted = dict(zip(names, session.run(None, feeds), strict=True))
    with torch.no_grad():
        got = Executor(model).run({name: torch.from_numpy(np.array(array)) for name, array in feeds.items()})
    assert list(got) == names
    for name, want in wanted.items():
        have = got[name].numpy()
        assert have.dtype == want.dtype, name
        assert have.shape == want.shape, name
        if want.dtype.kind == "f" and want.size:
            finite = np.isfinite(want)
            np.testing.assert_array_equal(np.where(finite, 0, have), np.where(finite, 0, want))
            size = float(np.abs(want[finite]).max(initial=0.0)) or 1.0
            assert float(np.abs(have[finite] - want[finite]).max(initial=0.0)) <= limit * size, name
        else:
            np.testing.assert_array_equal(have, want)
