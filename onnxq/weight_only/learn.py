"""Integers of one matrix after another by the method asked for, judged on data where there is some."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from onnxq.graph.unmapped import read
from onnxq.spec import QuantSpec, Scheme
from onnxq.weight_only import gptq
from onnxq.weight_only.find import Matrix
from onnxq.weight_only.float_blocks import unit_of
from onnxq.weight_only.grid import Coded, block_size, chunks, decode, empty, nearest
from onnxq.weight_only.hqq import hqq
from onnxq.weight_only.recipe import TABLE_BITS, Recipe
from onnxq.wide_products import wide_product

__all__ = ["Learner", "Rows"]

Floats = NDArray[np.float32]
Rows = Callable[[int], Floats]
"""Sample → what a layer multiplies its weight with, (rows, inputs)."""

_JUDGED_ROWS = 512


@dataclass(eq=False)
class Learner:
    """Quantizes matrices and remembers how it went.

    Attributes:
        recipe: how.
        fitting: samples to learn from.
        held: samples that judge.
        ratios: of each matrix that was judged: error of its output on the held samples over that of rounding to
            nearest, in power, before anything was undone.
        undone: how many matrices were rounded to nearest, since that was better.
        blind: how many matrices have no data to learn from.
    """

    recipe: Recipe
    fitting: Sequence[int] = ()
    held: Sequence[int] = ()
    ratios: list[float] = field(default_factory=list)
    undone: int = 0
    blind: int = 0
    _factor: tuple[str, int, Floats | None] | None = None

    def code(self, matrix: Matrix, rows: Rows | None = None, data: str = "") -> Coded | None:
        """The integers of a matrix, None where it holds numbers that are not finite.

        Args:
            matrix: what is quantized.
            rows: its data, if there is any.
            data: name of its data; layers of the same data share what is learned of it.
        """
        assert matrix.value.const_value is not None
        array = read(matrix.value.const_value)
        array = array.reshape(-1, array.shape[-1])
        weight = array.T if matrix.axis == 0 else array
        if not all(np.isfinite(array[part]).all() for part in chunks(*array.shape)):
            return None
        spec = self.recipe.spec(matrix.bits(self.recipe), matrix.block(self.recipe))
        if spec.scheme is not Scheme.FLOAT4:
            return self._coded(matrix, weight, spec, rows, data)
        unit = unit_of(max(float(np.abs(array[part]).max(initial=0)) for part in chunks(*array.shape)))
        made = self._coded(matrix, weight / np.float32(unit), spec, rows, data)
        return replace(made, scale=made.scale * np.float32(unit), unit=unit)

    def _coded(self, matrix: Matrix, weight: Floats, spec: QuantSpec, rows: Rows | None, data: str) -> Coded:
        """The integers of a matrix (outputs, inputs) of finite numbers."""
        bytes_of_table = matrix.gathered and spec.bits == TABLE_BITS  # which leave outliers nothing to spoil
        if self.recipe.method == "rtn" or bytes_of_table or (self.recipe.method == "gptq" and not matrix.multiplied):
            return self._nearest(weight, spec)
        if self.recipe.method == "hqq":
            made: Coded | None = hqq(weight, spec, either_sign=self.recipe.either_sign)
        else:
            made = None if rows is None else self._gptq(weight, spec, rows, data)
        if made is None:
            self.blind += 1
            return self._nearest(weight, spec)
        return made if rows is None else self._better(weight, made, rows)

    def _nearest(self, weight: Floats, spec: QuantSpec) -> Coded:
        return nearest(weight, spec, either_sign=self.recipe.either_sign)

    def _gptq(self, weight: Floats, spec: QuantSpec, rows: Rows, data: str) -> Coded | None:
        made = empty(spec, *weight.shape)
        for columns in gptq.column_groups(weight.shape[1], block_size(spec)):
            upper = self._factor_of(rows, data, columns)
            if upper is None:
                return None
            gptq.round_columns(weight, upper, made, columns, either_sign=self.recipe.either_sign)
        return made

    def _factor_of(self, rows: Rows, data: str, columns: slice) -> Floats | None:
        if self._factor is None or self._factor[:2] != (data, columns.start):
            self._factor = None  # free it first
            self._factor = (data, columns.start, gptq.factor(map(rows, self.fitting), columns))
        return self._factor[2]

    def forget(self) -> None:
        """Drop what was learned of the data."""
        self._factor = None

    def _better(self, weight: Floats, made: Coded, rows: Rows) -> Coded:
        plain = self._nearest(weight, made.spec)
        x = np.concatenate(list(self._judging(rows)))
        before, after = _error(weight, plain, x), _error(weight, made, x)
        if not math.isfinite(before + after) or before <= 0:
            return made
        self.ratios.append(after / before)
        if after > before:
            self.undone += 1
            return plain
        return made

    def _judging(self, rows: Rows) -> Iterator[Floats]:
        most = max(1, _JUDGED_ROWS // max(1, len(self.held)))
        for sample in self.held:
            x = rows(sample)
            yield x[np.linspace(0, len(x) - 1, min(most, len(x))).astype(np.int64)] if len(x) else x

    def notes(self) -> list[str]:
        """What there is to say, a line each."""
        if self.recipe.method == "rtn":
            return []
        name, said = self.recipe.method, []
        if self.ratios:
            kept = [min(ratio, 1.0) for ratio in self.ratios]
            mean = math.exp(sum(math.log(max(ratio, 1e-12)) for ratio in kept) / len(kept))
            undone = f"; undone in {self.undone} where it was worse" if self.undone else ""
            said.append(
                f"{name}: {len(kept)} matrices, output error on held-out samples {mean:.2f} times that of rounding to "
                f"nearest in power ({math.sqrt(mean):.2f} in amplitude){undone}"
            )
        if self.blind:
            said.append(f"{name}: {self.blind} matrices rounded to nearest, since no data reaches them, or zeros alone")
        return said


def _error(weight: Floats, coded: Coded, x: Floats) -> float:
    """Power of the difference that coding makes to ``x W^T``, summed."""
    total = 0.0
    for part in chunks(*weight.shape):
        difference = decode(coded, part)
        difference -= weight[part]
        out = wide_product(x, difference.T)
        total += float(np.einsum("ro,ro->", out, out, dtype=np.float64))
    return total
