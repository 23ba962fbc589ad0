"""Random rotations of channels: orthogonal matrices, of many channels such that are quick to multiply by.

Of few channels any matrix is as likely as any other (the Q of a QR decomposition of normally distributed numbers,
Mezzadri, How to Generate Random Matrices from the Classical Compact Groups, 2007). A matrix of many is a Kronecker
product of two small ones, which a weight is multiplied by one after the other, behind random signs. The small ones are
Hadamard matrices, all of whose entries are equally large (Tseng et al., QuIP#: Even Better LLM Quantization with
Hadamard Incoherence and Lattice Codebooks, 2024, section 3; Ashkboos et al., QuaRot: Outlier-Free 4-Bit Inference in
Rotated LLMs, 2024, section 4), as far as two divides the number of channels, and any matrix of the odd rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

__all__ = ["Matrix", "Rotation", "rotation"]

Matrix = NDArray[np.float64]

_FEW = 512
"""Channels whose matrix is made in 0.03 s."""


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """An orthogonal matrix R of C channels, by its factors.

    ``R = U P`` with ``U`` the Kronecker product of two orthogonal matrices and ``P`` a permutation with signs, or
    ``R = U' P U``, which leaves a vector of ones as it is where the first rows of both factors hold equal numbers and P
    leaves the first channel.

    Attributes:
        outer: (A, A).
        inner: (B, B), A B = C.
        order: (C,) of P: channel i is made of channel ``order[i]``.
        signs: (C,) of P, 1 or -1: what it is multiplied by.
        conjugates: whether R is ``U' P U``.
    """

    outer: Matrix
    inner: Matrix
    order: NDArray[np.int64]
    signs: Matrix
    conjugates: bool = False

    def along(self, array: NDArray[np.floating], axis: int) -> Matrix:
        """An array multiplied along one of its axes, of C numbers."""
        moved = np.moveaxis(array, axis, 0)
        made = moved.reshape(len(moved), -1).astype(np.float64)
        if self.conjugates:
            made = _mixed(self.outer, self.inner, made)
        made = made[self.order] * self.signs[:, None]
        made = _mixed(self.outer.T, self.inner.T, made) if self.conjugates else _mixed(self.outer, self.inner, made)
        return np.moveaxis(made.reshape(moved.shape), 0, axis)

    def digest(self) -> bytes:
        """A digest of R."""
        found = sha256()
        for part in (self.outer, self.inner, self.order, self.signs, np.array(self.conjugates)):
            found.update(np.ascontiguousarray(part).tobytes())
        return found.digest()


def rotation(size: int, random: np.random.Generator, *, keeps_mean: bool = False) -> Rotation:
    """A random rotation.

    Args:
        size: of channels, 1 or more.
        random: where it comes from.
        keeps_mean: of those that leave the mean of a vector, and so a vector of ones, as it is.
    """
    twos = (size & -size).bit_length() - 1
    outer = 1 << (twos + 1) // 2
    if size <= _FEW or size // outer > _FEW:
        return Rotation(np.ones((1, 1)), _any(size, random, keeps_mean=keeps_mean), np.arange(size), np.ones(size))
    odd = size >> twos
    rest = _from_ones(odd, random) if keeps_mean else _any(odd, random)
    order, signs = np.arange(size), random.choice([-1.0, 1.0], size)
    if keeps_mean:
        order[1:], signs[0] = 1 + random.permutation(size - 1), 1.0
    inner = np.asarray(np.kron(_hadamard((1 << twos) // outer), rest), np.float64)
    return Rotation(_hadamard(outer), inner, order, signs, keeps_mean)


def _mixed(outer: Matrix, inner: Matrix, array: Matrix) -> Matrix:
    """The Kronecker product of two matrices times a third, (C, M)."""
    made = inner @ array.reshape(len(outer), len(inner), -1)
    return (outer @ made.reshape(len(outer), -1)).reshape(array.shape)


def _any(size: int, random: np.random.Generator, *, keeps_mean: bool = False) -> Matrix:
    """An orthogonal matrix, any as likely as any other, or any of those that keep the mean."""
    if not keeps_mean:
        made, triangle = np.linalg.qr(random.standard_normal((size, size)))
        return np.asarray(made * np.sign(np.diag(triangle)))
    ones = np.full((size, 1), size**-0.5)
    rest = _from_ones(size, random)[1:].T
    return np.asarray(ones @ ones.T + rest @ _any(size - 1, random) @ rest.T)


def _from_ones(size: int, random: np.random.Generator) -> Matrix:
    """An orthogonal matrix whose first row holds equal numbers above 0."""
    ones = np.full((size, 1), size**-0.5)
    made = np.linalg.qr(np.hstack([ones, random.standard_normal((size, size - 1))]))[0]
    return np.asarray(made.T * np.where(np.arange(size) == 0, np.sign(made[0, 0]), 1.0)[:, None])


def _hadamard(size: int) -> Matrix:
    """Sylvester's Hadamard matrix over the square root of its size, a power of two."""
    made = np.ones((1, 1))
    while len(made) < size:
        made = np.kron(np.array([[1.0, 1.0], [1.0, -1.0]]), made)
    return np.asarray(made / np.sqrt(size))
