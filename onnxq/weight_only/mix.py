"""Bits of each weight under a budget, those of least noise at the outputs.

The noise of each weight in 4 bits is measured at the outputs, that weight alone rounded. In other bits it is taken to
be what it is in proportion to the power of the weight's own rounding error, and that of several weights to add up (see
:mod:`onnxq.algorithms.mixed_precision`, where each width is measured). The best choice under a budget of bits is a
multiple-choice knapsack. Without data a weight's rounding error, relative to its power, stands for its noise.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.algorithms.bits.allocate import allocate
from onnxq.console.terminal import plural
from onnxq.errors import OptionError
from onnxq.file_system import write_text
from onnxq.graph.unmapped import read
from onnxq.locations import made_folder, require_choice
from onnxq.measuring.decibels import sqnr_of
from onnxq.options import Options, Override
from onnxq.options.config import to_toml
from onnxq.options.patterns import meaning_one, names_of
from onnxq.weight_only.find import Matrix
from onnxq.weight_only.grid import Coded, chunks, decode, nearest
from onnxq.weight_only.recipe import Recipe
from onnxq.weight_only.vary import output_noise

__all__ = ["Mixture", "mix", "require_folder", "write_choice"]

_PROBED = 4
"""Bits that each weight is measured in."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """Bits that were chosen.

    Attributes:
        matrices: all of a model, those that were chosen for with their bits.
        average: bits of the weights that were chosen for.
        budget: what it was to be at most; it is more where some weights have no bits as few.
        measured: whether their noise was measured at the outputs.
        decibels: first reader of each that was chosen for: outputs against float when it alone takes 4 bits, or without
            data the weight against its rounding.
    """

    matrices: Sequence[Matrix]
    average: float
    budget: float
    measured: bool
    decibels: Mapping[str, float]

    def note(self) -> str:
        """What was chosen, in a line."""
        counts = Counter(matrix.chosen for matrix in self.matrices if matrix.chosen)
        said = ", ".join(f"{counts[bits]} in {bits} bits" for bits in sorted(counts))
        why = "what each does to the outputs" if self.measured else "their own rounding error: data would tell more"
        over = f" and not {self.budget:g}, since they have no fewer" if self.average > self.budget * (1 + 1e-6) else ""
        return f"{plural(sum(counts.values()), 'weight')}, {said}: {self.average:.2f} on average{over}, by {why}"

    def details(self) -> list[str]:
        """A line for each weight, the most sensitive first."""
        bits = {_reader(matrix): matrix.chosen for matrix in self.matrices if matrix.chosen}
        of = "outputs" if self.measured else "itself"
        ranked = sorted(self.decibels.items(), key=lambda item: item[1])
        return [f"{name}: {bits[name]} bits ({level:.1f} dB of {of} in {_PROBED})" for name, level in ranked]


def mix(
    model: ir.Model,
    matrices: Sequence[Matrix],
    recipe: Recipe,
    feeds: Sequence[Mapping[str, NDArray[Any]]],
    options: Options,
    advance: Callable[[int], None],
) -> Mixture:
    """Choose bits for the weights that MatMul and Gemm multiply with, but those of an override or a router.

    Args:
        model: the float model; not modified.
        matrices: of it.
        recipe: its ``avg_bits`` is the budget, its ``widths`` what can be chosen, those that fit a weight.
        feeds: samples to measure with; none: by the weights alone.
        options: execution providers and the library of custom operators.
        advance: told how many weights were measured.
    """
    free = [m for m in matrices if m.free]
    errors, every = _probed(model, free, recipe, feeds, options, advance)
    finite = [math.isfinite(sum(each.values())) for each in errors]
    known = [k for k, noise in enumerate(every) if noise is not None and finite[k]]
    noises = [every[k] or 0.0 for k in known]
    losses = [
        [error / max(errors[k][_PROBED], 1e-30) * noise for error in errors[k].values()]
        for k, noise in zip(known, noises, strict=True)
    ]
    sizes = [math.prod(free[k].shape) for k in known]
    costs = [[float(size * bits) for bits in errors[k]] for k, size in zip(known, sizes, strict=True)]
    made = allocate(costs, losses, max(recipe.avg_bits * sum(sizes), math.fsum(map(min, costs))))
    chosen = {} if made is None else {free[k]: list(errors[k])[i] for k, i in zip(known, made.chosen, strict=True)}
    levels = {_reader(free[k]): sqnr_of(noise) for k, noise in zip(known, noises, strict=True)}
    average = made.cost / sum(sizes) if made is not None and sizes else 0.0
    mixed = [replace(m, chosen=chosen.get(m)) for m in matrices]
    return Mixture(mixed, average, recipe.avg_bits, bool(feeds), levels)


def _probed(
    model: ir.Model,
    free: Sequence[Matrix],
    recipe: Recipe,
    feeds: Sequence[Mapping[str, NDArray[Any]]],
    options: Options,
    advance: Callable[[int], None],
) -> tuple[list[dict[int, float]], Sequence[float | None]]:
    """Of each weight its error by bits, and what the probed ones do to the outputs, or without samples to itself."""
    seen: dict[Matrix, dict[int, float]] = {}

    def looked_at(matrix: Matrix) -> Coded | None:
        weight = _weight(matrix)
        fitting = sorted({recipe.fitting_bits(matrix.shape[0], bits) for bits in recipe.widths})
        if not all(np.isfinite(weight[part]).all() for part in chunks(*weight.shape)):  # it will stay float
            seen[matrix] = dict.fromkeys(fitting, math.inf)
            return None
        made = {bits: _coded(weight, matrix, recipe, bits) for bits in fitting}
        seen[matrix] = {bits: _error(weight, coded) for bits, coded in made.items()}
        return made[_PROBED]

    def rounded(matrix: Matrix) -> NDArray[np.float32]:
        coded = looked_at(matrix)
        decoded = decode(coded) if coded is not None else _weight(matrix)
        return decoded.T if matrix.axis == 0 else decoded

    found = output_noise(model, free, rounded, feeds, options, advance=advance) if feeds else []
    for matrix in free:
        if matrix not in seen:
            looked_at(matrix)
    errors = [seen[matrix] for matrix in free]
    return errors, found if feeds else [each[_PROBED] for each in errors]


def _reader(matrix: Matrix) -> str:
    return matrix.nodes[0].name or ""


def _weight(matrix: Matrix) -> NDArray[np.float32]:
    """(outputs, inputs), one output after another."""
    assert matrix.value.const_value is not None
    array = read(matrix.value.const_value)
    return np.ascontiguousarray(array.T if matrix.axis == 0 else array, np.float32)


def _coded(weight: NDArray[np.float32], matrix: Matrix, recipe: Recipe, bits: int) -> Coded:
    """What rounding a weight to nearest makes of it."""
    spec = recipe.spec(bits, replace(matrix, chosen=bits).block(recipe))
    return nearest(weight, spec, either_sign=recipe.either_sign)


def _error(weight: NDArray[np.float32], made: Coded) -> float:
    """Power of what rounding a weight changes, relative to that of the weight."""
    noise = signal = 0.0
    for part in chunks(*weight.shape):
        rows = weight[part]
        difference = decode(made, part) - rows
        noise += float(np.einsum("oi,oi->", difference, difference, dtype=np.float64))
        signal += float(np.einsum("oi,oi->", rows, rows, dtype=np.float64))
    return noise / signal if signal else 0.0


def require_folder(path: str | os.PathLike[str], recipe: Recipe) -> None:
    """Refuse a file for a choice that cannot be written, or that nothing is to be chosen for.

    Raises:
        OptionError: there is no budget.
        OutputError: it cannot be written there.
    """
    if path and not recipe.avg_bits:
        raise OptionError("there is no choice to write without avg_bits", where="save")
    if path:
        require_choice(path)


def write_choice(path: Path, mixture: Mixture, model: ir.Model, recipe: Recipe, options: Options) -> None:
    """Write a configuration file with what was chosen as overrides, which gives the same result without measuring.

    Args:
        path: of the file.
        mixture: what was chosen.
        model: whose nodes the matrices are read by.
        recipe: how.
        options: all else that was asked for.
    """
    pattern = meaning_one(names_of(model))
    changes = {
        pattern("node", node.name or ""): Override(weight_bits=matrix.chosen)
        for matrix in mixture.matrices
        if matrix.chosen
        for node in matrix.nodes
    }
    plain = Recipe()
    given = [(f.name, getattr(recipe, f.name)) for f in fields(recipe) if f.name != "avg_bits"]
    told = [f"{k}={str(v).lower()}" for k, v in given if v != getattr(plain, k)]
    algorithm = "weight_only" + (":" + ",".join(told) if told else "")
    written = replace(options, algorithms=(algorithm,), override=(*options.override, *changes.items()))
    with made_folder(path):
        write_text(path, to_toml(written, f"bits chosen for avg_bits={recipe.avg_bits:g}: {mixture.note()}"))
