"""The passes that bring a model into the one form that everything else works on, in order."""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from onnxq.graph.files.exporter_notes import drop_exporter_notes
from onnxq.graph.namer import unique_names
from onnxq.graph.note import Note
from onnxq.graph.passes.cancel_squeezes import cancel_squeezes
from onnxq.graph.passes.cancel_transposes import cancel_transposes
from onnxq.graph.passes.clip_bounds import clip_bounds
from onnxq.graph.passes.constant_divisors import constant_divisors
from onnxq.graph.passes.constants import fold_constants, lift_constants
from onnxq.graph.passes.defaults import drop_initializer_inputs
from onnxq.graph.passes.einsum_products import einsum_products
from onnxq.graph.passes.every_axis import every_axis
from onnxq.graph.passes.flat_norms import flat_norms
from onnxq.graph.passes.fold_affine import fold_affine
from onnxq.graph.passes.fold_batchnorm import Unfit, fold_batchnorm
from onnxq.graph.passes.fold_pad import fold_pad
from onnxq.graph.passes.fuse_hardswish import fuse_hardswish
from onnxq.graph.passes.fuse_prelu import fuse_prelu
from onnxq.graph.passes.gather_rows import gather_rows
from onnxq.graph.passes.gemm import fold_gemm
from onnxq.graph.passes.global_pools import global_pools
from onnxq.graph.passes.hoist import hoist
from onnxq.graph.passes.inline import inline_functions, relabel_functions
from onnxq.graph.passes.invariant_state import free_invariant_state
from onnxq.graph.passes.needless_expands import needless_expands
from onnxq.graph.passes.opset import raise_opset
from onnxq.graph.passes.prune import eliminate_identity, remove_dead
from onnxq.graph.passes.reshape_targets import fold_targets
from onnxq.graph.passes.scalar_range import scalar_ranges
from onnxq.graph.passes.share import share_constants
from onnxq.graph.passes.unfuse import unfuse
from onnxq.graph.passes.vector_products import vector_products
from onnxq.graph.passes.write_out import write_out
from onnxq.graph.shapes import infer_shapes

__all__ = ["normalize"]


def normalize(
    model: ir.Model,
    *,
    opset: int | None = None,
    min_opset: int = 17,
    keep: Collection[tuple[str, str]] = (),
    unfit: Unfit | None = None,
    stays: Callable[[ir.Node], bool] = lambda _: False,
) -> list[Note]:
    """Brings a model into normal form.

    Afterwards there are no functions (but those in ``keep``), no Constant nodes (but those that make a graph output),
    what depends on constants alone is computed, what onnxruntime's optimizer fused with a convolution or a product with
    constants stands for itself, Swish and GroupNormalization are the chains that they stand for, what picks whole rows
    is a Gather, nothing is expanded for what repeats elements by itself, Resize and Pad name no axes where they can do
    without, batch normalizations and per-channel affine operators are folded into the layers beside them, tensor names
    are unique over the whole model with its subgraphs,
    and every node has a unique name. Graph inputs and outputs keep names, order, types and shapes, but for constants
    that the file form forced onto the inputs. The model computes what it computed before, but for float32 rounding.
    Normalizing twice gives the same as once.

    Args:
        model: changed in place; take it from ``graph.load.load``.
        opset: the version of the standard operators to raise to; None means at least ``min_opset``.
        min_opset: used when ``opset`` is None.
        keep: (domain, name) of functions that stay functions.
        unfit: see :func:`onnxq.graph.passes.fold_batchnorm.fold_batchnorm`.
        stays: see :func:`onnxq.graph.passes.constants.fold_constants`.

    Returns:
        What was done, and what was left alone for which reason.

    Raises:
        ModelError: functions that cannot be inlined, an opset that cannot be raised.
        OptionError: ``opset`` is lower than the model's own, or unknown.
    """
    notes = [
        *drop_exporter_notes(model),
        *inline_functions(model, keep),
        *drop_initializer_inputs(model),
        *unique_names(model),
        *raise_opset(model, opset, minimum=min_opset),
        *relabel_functions(model),
        *unique_names(model),
        *lift_constants(model),
        *free_invariant_state(model),
        *_compute_constants(model, stays),
    ]
    changes = [
        *remove_dead(model),
        *scalar_ranges(model),
        *einsum_products(model),
        *gather_rows(model),
        *needless_expands(model),
        *every_axis(model),
        *unfuse(model),
        *write_out(model),
        *fold_gemm(model),
        *vector_products(model),
        *flat_norms(model),
        *_bring_together(model),
        *global_pools(model),
        *fold_pad(model),
        *_fold_layers(model, unfit),
        *constant_divisors(model),
        *clip_bounds(model),
        *remove_dead(model),
        *share_constants(model),
    ]
    if changes:
        changes += infer_shapes(model)
    return notes + changes


def _compute_constants(model: ir.Model, stays: Callable[[ir.Node], bool]) -> list[Note]:
    """Shapes and constants in turns: a number computed may make a shape known, and a known shape is a number."""
    done: list[Note] = []
    while True:
        notes = [*infer_shapes(model), *eliminate_identity(model), *fold_constants(model, stays), *fold_targets(model)]
        folded = [note for note in notes if not note.node]
        done += [note for note in folded if note not in done]
        if not any(note.pass_name != "shapes" for note in folded):
            return done + [note for note in notes if note.node]


def _bring_together(model: ir.Model) -> list[Note]:
    """Chains, and what stands between their parts, in turns: a converter may have put a Transpose into each branch."""
    done: list[Note] = []
    while True:
        notes = [*fuse_prelu(model), *fuse_hardswish(model), *cancel_squeezes(model), *cancel_transposes(model)]
        notes = notes or hoist(model)  # of whole chains, which reach as far as a layer
        if not notes:
            return done
        done += notes


def _fold_layers(model: ir.Model, unfit: Unfit | None) -> list[Note]:
    """Arithmetic and batch normalizations in any order: each folded one may bring the next beside its layer.

    So may what is brought together behind it: a normalization that has become a bias is in nobody's way.
    """
    done: list[Note] = []
    while True:
        notes = [*fold_affine(model), *fold_batchnorm(model, unfit)]
        folded = [note for note in notes if not note.node]
        if not folded:
            return done + notes
        done += [*folded, *_bring_together(model)]
