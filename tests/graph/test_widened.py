from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxq.errors import ModelError
from onnxq.graph.widened import Widened
from onnxq.options import Options
from onnxq.prepare import Prepared
from tests.graph.helpers import build, random
from tests.installed import needs


def _saved(path: Path, weight: NDArray[Any]) -> Path:
    """A product with a weight in half precision, which lies in a data file."""
    kind = "bfloat16" if weight.dtype == ml_dtypes.bfloat16 else "float16"
    proto = build(f"g ({kind}[2,64] x) => ({kind}[2,48] y) {{ y = MatMul(x, w) }}")
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(proto, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    return path


@pytest.mark.parametrize("kind", [np.float16, pytest.param(ml_dtypes.bfloat16, marks=needs("onnx", "1.19"))])
def test_weights_in_data_files_stay_there(kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight: NDArray[Any] = random(64, 48).astype(kind)
    path = _saved(tmp_path / "m.onnx", weight)
    reads: list[str | None] = []
    read = Widened._read

    def noted(self: Widened) -> ir.TensorProtocol:
        reads.append(self.name)
        return read(self)

    monkeypatch.setattr(Widened, "_read", noted)
    model = Prepared(path, Options(), streamed=True).model
    (value,) = model.graph.initializers.values()
    held = value.const_value
    assert isinstance(held, Widened) and not reads
    assert (held.dtype, held.nbytes) == (ir.DataType.FLOAT, weight.size * 4)
    np.testing.assert_array_equal(held.numpy(), weight.astype(np.float32))
    assert reads == ["w"]


def test_a_data_file_that_went_away_is_named(tmp_path: Path) -> None:
    path = _saved(tmp_path / "m.onnx", random(64, 48).astype(np.float16))
    (value,) = Prepared(path, Options(), streamed=True).model.graph.initializers.values()
    (tmp_path / "m.onnx.data").unlink()
    assert value.const_value is not None
    with pytest.raises(ModelError, match="tensor 'w': its data cannot be read"):
        value.const_value.numpy()
