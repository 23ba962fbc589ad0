"""Reading tensors without mapping their files."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq.errors import ModelError
from onnxq.graph.values import AnyArray, array_of

__all__ = ["read", "read_rows"]


def read(tensor: ir.TensorProtocol) -> AnyArray:
    """The numbers of a tensor.

    One in a data file is copied: pages of a mapped file would count as memory for as long as the file is mapped.

    Raises:
        ModelError: they cannot be read.
    """
    if not isinstance(tensor, ir.ExternalTensor) or tensor.dtype.bitwidth < 8:
        return array_of(tensor)
    return _from_file(tensor, 0, tuple(tensor.shape.numpy()))


def read_rows(tensor: ir.TensorProtocol, rows: slice) -> AnyArray:
    """Some rows of a tensor, those of a data file alone read from there; see :func:`read`.

    Args:
        tensor: of two axes.
        rows: along the first.

    Raises:
        ModelError: they cannot be read.
    """
    if not isinstance(tensor, ir.ExternalTensor) or tensor.dtype.bitwidth < 8:
        return array_of(tensor)[rows]
    count, columns = tensor.shape.numpy()
    start, stop, _ = rows.indices(count)
    return _from_file(tensor, start * columns, (stop - start, columns))


def _from_file(tensor: ir.ExternalTensor, first: int, shape: tuple[int, ...]) -> AnyArray:
    """Numbers of a tensor from one on."""
    kind = tensor.dtype.numpy()
    try:
        with open(tensor.path, "rb") as file:
            file.seek((tensor.offset or 0) + first * kind.itemsize)
            array = np.fromfile(file, kind, int(np.prod(shape, dtype=np.int64)))
        return array.reshape(shape)
    except (OSError, ValueError) as error:
        raise ModelError(f"its data cannot be read: {error}", where=f"tensor '{tensor.name}'") from error
