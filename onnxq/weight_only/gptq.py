"""GPTQ: each input's rounding error is made up for by the inputs that are not rounded yet.

With ``H = X^T X`` over the data and ``U`` the upper Cholesky factor of its inverse, input i is rounded to nearest and
its error, divided by ``U[i, i]``, is taken out of the inputs behind it in proportion to ``U[i, i:]`` (Frantar et al.,
GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers, 2022, algorithm 1). Scales of a block
are chosen when its first input is reached, from the weights as they are by then.

At most `COLUMNS` inputs are learned together, which bounds memory whatever the size of the layer: the error of one such
group is not made up for by the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from onnxq.weight_only.grid import Coded, block_size, choose
from onnxq.weight_only.lanes import to_grid
from onnxq.wide_products import wide_product

__all__ = ["COLUMNS", "column_groups", "damping", "factor", "round_columns"]

Floats = NDArray[np.float32]

COLUMNS = 2048
_DAMPING = 0.01
"""Part of the mean of the diagonal that is added to it, at least."""
_MOST_SHRINKAGE = 0.99
_LAZY = 128
"""Columns after which the rest of the matrix is updated in one product."""
_SMALL = 64
_FAR = 100
"""Powers of two around 1 beyond which second moments are too large or small for a factor of float32."""
_ROWS = 1 << 21
"""Numbers of a matrix worked on at a time."""


def column_groups(inputs: int, block: int) -> Iterator[slice]:
    """Inputs that are learned together; a group never cuts a block."""
    step = max(block, COLUMNS // block * block)
    for start in range(0, inputs, step):
        yield slice(start, min(start + step, inputs))


def factor(data: Iterable[Floats], columns: slice) -> Floats | None:
    """The upper triangular U with ``U^T U = (X^T X + damping)^-1``.

    Of very large or very small data it is that times a power of two: only ratios of its numbers count.

    Args:
        data: pieces of X, (rows, inputs).
        columns: of the inputs.

    Returns:
        float32, (columns, columns); None where the data is all zero or not finite there. The damping is as much as the
        number of rows asks for: inputs that vary together in a few of them alone need not do so in others.
    """
    count = columns.stop - columns.start
    hessian, rows = np.zeros((count, count)), 0
    for piece in data:
        part = np.ascontiguousarray(piece[:, columns][:, ::-1])  # last input first, see below
        hessian += wide_product(part.T, part)
        rows += len(part)
    diagonal = hessian.diagonal().copy()
    mean = float(diagonal.mean())
    if not np.isfinite(mean) or mean <= 0:
        return None
    power = int(np.frexp(mean)[1]) // 2 * 2
    if abs(power) > _FAR:  # of two, even: the factor's own numbers are to fit float32
        np.ldexp(hessian, -power, out=hessian)
        mean, diagonal = float(np.ldexp(mean, -power)), np.ldexp(diagonal, -power)
    added = damping(hessian, rows) * mean
    diagonal[diagonal <= 0] = mean
    hessian[np.diag_indices(count)] = diagonal + added
    try:
        _decompose(hessian)  # in the inputs' own order H = R R^T with R upper, so that U = R^-1
    except np.linalg.LinAlgError:
        return None
    _invert(hessian)
    return np.ascontiguousarray(hessian[::-1, ::-1], np.float32)


def damping(hessian: NDArray[np.float64], rows: int) -> float:
    """What is to be added to the diagonal of second moments, in parts of its mean: more where rows are few.

    The oracle approximating shrinkage of Chen, Wiesel, Eldar & Hero, Shrinkage Algorithms for MMSE Covariance
    Estimation, 2010.
    """
    count = len(hessian)
    trace = float(hessian.trace())
    square = float(np.einsum("ij,ij->", hessian, hessian))
    spread = (rows + 1 - 2 / count) * (square - trace * trace / count)
    shrinkage = ((1 - 2 / count) * square + trace * trace) / spread if spread > 0 else 0.0
    shrinkage = min(shrinkage, _MOST_SHRINKAGE)
    return max(_DAMPING, shrinkage / (1 - shrinkage))


def _decompose(matrix: NDArray[np.float64]) -> None:
    """A positive definite matrix becomes its lower Cholesky factor, by halves and without a copy of the whole."""
    count = len(matrix)
    if count <= _SMALL:
        matrix[:] = np.linalg.cholesky(matrix)
        return
    half = count // 2
    _decompose(matrix[:half, :half])
    inverse = matrix[:half, :half].copy()
    _invert(inverse)
    below = matrix[half:, :half] @ inverse.T
    del inverse
    matrix[half:, :half], matrix[:half, half:] = below, 0.0
    matrix[half:, half:] -= below @ below.T
    del below
    _decompose(matrix[half:, half:])


def _invert(lower: NDArray[np.float64]) -> None:
    """A lower triangular matrix becomes its inverse, by halves: ``[[A, 0], [B, C]]^-1 = [[A', 0], [-C' B A', C']]``."""
    count = len(lower)
    if count <= _SMALL:
        lower[:] = np.tril(np.linalg.inv(lower))
        return
    half = count // 2
    _invert(lower[:half, :half])
    _invert(lower[half:, half:])
    lower[half:, :half] = -(lower[half:, half:] @ lower[half:, :half]) @ lower[:half, :half]


def round_columns(matrix: Floats, upper: Floats, made: Coded, columns: slice, *, either_sign: bool = False) -> None:
    """Quantize some inputs of a matrix.

    Args:
        matrix: (outputs, inputs).
        upper: from :func:`factor`, for these columns.
        made: filled in there.
        columns: the inputs; they start at a block.
        either_sign: see :func:`onnxq.weight_only.grid.choose`.
    """
    count = columns.stop - columns.start
    step = max(1, _ROWS // count)
    for start in range(0, len(matrix), step):
        rows = slice(start, min(start + step, len(matrix)))
        work = np.array(matrix[rows, columns].T, np.float32, order="C")
        _round_rows(work, upper, made, rows, columns, either_sign=either_sign)


def _round_rows(work: Floats, upper: Floats, made: Coded, rows: slice, columns: slice, *, either_sign: bool) -> None:
    """``work``: (inputs, outputs), used up. Inputs lie along axis 0, so that every step works on rows of memory."""
    spec, size = made.spec, block_size(made.spec)
    count = len(work)
    scale = zero = np.empty(0, np.float32)
    ints = np.empty((count, work.shape[1]), made.codes.dtype)
    for first in range(0, count, _LAZY):
        last = min(first + _LAZY, count)
        errors = np.empty((last - first, work.shape[1]), np.float32)
        for i in range(first, last):
            if i % size == 0:
                # steps of 128 and blocks, powers of two, lie inside one another: these rows are up to date
                block = np.ascontiguousarray(work[i : min(i + size, count)].T)
                scale, zero = (part[:, 0] for part in choose(block[:, None, :], spec, either_sign=either_sign))
                at = (columns.start + i) // size
                made.scale[rows, at], made.zero[rows, at] = scale, zero.astype(made.zero.dtype)
            rounded = to_grid(work[i] / scale, zero, spec)
            ints[i] = rounded + zero
            error = np.subtract(work[i], rounded * scale, out=errors[i - first])
            error /= upper[i, i]
            if i + 1 < last:
                work[i + 1 : last] -= upper[i, i + 1 : last, None] * error
        if last < count:
            work[last:] -= upper[first:last, last:].T @ errors
    made.codes[rows, columns] = ints.T
