"""Weights in half precision that lie in a data file, seen as the float32 numbers that they stand for."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxq.errors import ModelError

__all__ = ["Widened"]


class Widened(ir.LazyTensor):
    """A float32 tensor that is read from its file, and widened, whenever its numbers are asked for.

    Args:
        source: float16 or bfloat16, in a data file.
        name: of the tensor.

    Attributes:
        source: what it is made from; every number of it is exact in float32.
    """

    def __init__(self, source: ir.ExternalTensor, name: str | None) -> None:
        super().__init__(self._read, ir.DataType.FLOAT, ir.Shape(source.shape.numpy()), name=name)
        self.source = source

    def _read(self) -> ir.TensorProtocol:
        """The numbers, with no map of the file left: its pages would count as memory for as long as there is one."""
        shape = tuple(self.source.shape.numpy())
        try:
            with open(self.source.path, "rb") as file:
                file.seek(self.source.offset or 0)
                bits = np.fromfile(file, np.uint16, math.prod(shape))
            return ir.Tensor(bits.view(self.source.dtype.numpy()).reshape(shape).astype(np.float32), name=self.name)
        except (OSError, ValueError) as error:
            raise ModelError(f"its data cannot be read: {error}", where=f"tensor '{self.name}'") from error
