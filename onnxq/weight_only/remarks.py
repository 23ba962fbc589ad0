"""What is said of a weight-only result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from onnxq.console.terminal import decibels, listed, plural
from onnxq.measuring.verification import Verification
from onnxq.notes.reasons import to_exclude
from onnxq.weight_only.find import Matrix
from onnxq.weight_only.recipe import BITS, FASTEST, TABLE_BITS, Recipe

__all__ = ["more_accurate", "more_bits", "remarks", "title", "why_slow"]

_NAMED = 4
"""Layers that a remark names."""
_USUAL = 4
"""Bits of a weight, if no others are asked for."""
_POOR = 25.0
"""dB of the worst output, below which more is offered: on seven transformers in 4 bits, at 7 to 21 dB, GPTQ gained 0 to
9 dB, 5 in the mean, and half a bit more 0 to 17, 4.6 in the mean."""
_HALVES = (
    "the model came in half precision and computes in float32 now, as a CPU does; its inputs and outputs are "
    "cast. A GPU, which multiplies halves, is slower so"
)
_ROUNDED = (
    "onnxruntime rounds activations to 8 bits where it multiplies; the session option "
    "session.qdq_matmulnbits_accuracy_level=0 keeps them float: more accurate, and slower"
)


def why_slow(recipe: Recipe, quantized: Mapping[str, str]) -> str:
    """Why a result is slower than float, and what to do; ``quantized``: node name → operator."""
    if recipe.format == "matmulnbits" and recipe.accuracy_level != FASTEST:
        return f"accuracy_level={recipe.accuracy_level} multiplies in float32, accuracy_level={FASTEST} in integers"
    return (
        "unpacking weights costs more than it gains with as many rows (tokens) as these samples have; with one at a "
        f"time, as decoders generate, it mostly gains. {to_exclude(Counter(quantized.values()))}"
    )


def more_bits(matrices: Sequence[Matrix], recipe: Recipe) -> dict[str, str]:
    """Reader → the flag that gives its weight 8 bits, of weights that take fewer."""
    names = (node.name or "" for matrix in matrices if matrix.bits(recipe) < TABLE_BITS for node in matrix.nodes)
    return {name: f"--override '{name}=weight_bits={TABLE_BITS}'" for name in names}


def more_accurate(verification: Verification, recipe: Recipe) -> list[str]:
    """What may give more where a result made with data is poor: what has not been asked for."""
    if verification.worst is None or verification.worst[1].sqnr >= _POOR or recipe.bits >= TABLE_BITS:
        return []
    ways = []
    if recipe.method != "gptq":
        ways.append("method=gptq learns the rounding from the data")
    if not recipe.avg_bits and recipe.bits == _USUAL:
        ways.append(f"avg_bits={_USUAL + 0.5} in place of bits gives more to the weights that the outputs need most")
    name, errors = verification.worst
    return [f"output {name!r} has {decibels(errors.sqnr)}: {'; '.join(ways)}"] if ways else []


def title(recipe: Recipe) -> str:
    """What was done, in a line."""
    kind = "symmetric" if recipe.symmetric else "asymmetric"
    bits = f"at most {recipe.avg_bits:g} bits on average" if recipe.avg_bits else f"{recipe.bits} bits"
    return f"weights in {bits}, {kind}, blocks of {recipe.block}, {recipe.method}, {recipe.format}"


def remarks(matrices: Sequence[Matrix], recipe: Recipe, *, in_file: bool, halves: bool = False) -> list[str]:
    """What a reader of the result may wonder at.

    Args:
        matrices: what was quantized.
        recipe: how.
        in_file: whether weights lie in the model file itself.
        halves: whether the model came in half precision.
    """
    shared = _about_shared(matrices) if in_file and recipe.format == "qdq" else []
    return [
        *([_HALVES] if halves else []),
        *([_ROUNDED] if recipe.format == "qdq" and any(_is_rounded(matrix, recipe) for matrix in matrices) else []),
        *_about_wider([matrix for matrix in matrices if matrix.bits(recipe) > recipe.bits], recipe),
        *_about_refused([matrix for matrix in matrices if matrix.gathered], recipe),
        *_about_tied([matrix for matrix in matrices if matrix.tied]),
        *_about_widened([matrix for matrix in matrices if _is_widened(matrix, recipe)]),
        *_about_asked([m.asked for m in matrices if m.asked == m.bits(recipe) != recipe.bits and not m.tied]),
        *_about_blocks(sum(matrix.block(recipe) < recipe.block for matrix in matrices), recipe),
        *_about_experts(matrices, recipe),
        *_about_parted(matrices),
        *shared,
    ]


def _is_rounded(matrix: Matrix, recipe: Recipe) -> bool:
    """Whether onnxruntime rounds what it is multiplied with, as it does where weights have 8 bits in the format qdq."""
    return matrix.multiplied and matrix.bits(recipe) == TABLE_BITS and not matrix.chooses


def _about_wider(wider: Sequence[Matrix], recipe: Recipe) -> list[str]:
    """What takes more bits than were asked for, by the reason."""
    notes = []
    for count, one, many, why in (
        (
            sum(matrix.gathered and not matrix.asked and not _is_deep(matrix) for matrix in wider),
            "table that rows are picked from takes",
            "tables that rows are picked from take",
            "no sum evens out the rounding of a row",
        ),
        (
            sum(_is_deep(matrix) and not matrix.asked for matrix in wider),
            "table that matrices are picked from takes",
            "tables that matrices are picked from take",
            "onnxruntime unpacks those of 4 half as fast (--override 'Gather=weight_bits=4' for the smaller file)",
        ),
        (
            sum(matrix.chooses and not matrix.asked for matrix in wider),
            "weight whose product is picked from takes",
            "weights whose products are picked from take",
            "what rounding changes there, experts say, is another computation",
        ),
        (
            sum(matrix.whole and not matrix.gathered and recipe.format != "qdq" for matrix in wider),
            "weight that is unpacked at load takes",
            "weights that are unpacked at load take",
            "format=qdq stores the bits asked for",
        ),
    ):
        if count:
            notes.append(f"{count} {one if count == 1 else many} {TABLE_BITS} bits: {why}")
    return notes


def _is_deep(matrix: Matrix) -> bool:
    """Whether whole matrices of a table are picked."""
    return matrix.gathered and len(matrix.rows) > 1


def _about_refused(tables: Sequence[Matrix], recipe: Recipe) -> list[str]:
    """Of tables that cannot have the bits that an override asks for."""
    refused = [table for table in tables if table.asked not in (None, table.bits(recipe))]
    if not refused:
        return []
    takes = f"{plural(len(refused), 'table')} {'takes' if len(refused) == 1 else 'take'} {TABLE_BITS} bits"
    takes += f" and not the {refused[0].asked} asked for"
    inputs = refused[0].shape[1]
    if refused[0].asked == BITS[1] and recipe.format != "qdq" and inputs % 2 == 0 and recipe.misreads_zeros(inputs):
        return [
            f"{takes}, which onnxruntime 1.23 to 1.26 reads wrongly where rows have zero points of an odd number of "
            "blocks; with weight_only:symmetric=true, or another block, it is right"
        ]
    has = "format=matmulnbits has 4 as well" if recipe.format == "qdq" else "4 they may have, in rows of even length"
    return [f"{takes}, which no operator picks rows of; {has}"]


def _about_tied(tied: Sequence[Matrix]) -> list[str]:
    """Of products that multiply with a table's integers, those whose bits nobody asked for."""
    plain = [matrix for matrix in tied if matrix.asked is None]
    if not tied:
        return []
    stored = (
        f"{plural(len(tied), 'weight')} {'is' if len(tied) == 1 else 'are'} stored once with the table that holds "
        "the same numbers"
    )
    if not plain:
        return [f"{stored}, in {tied[0].asked} bits"]
    return [
        f"{stored}, in {TABLE_BITS} bits; --override '{plain[0].nodes[0].name}=weight_bits=4' stores it apart: a "
        "larger file, and one row at a time is multiplied faster. --override 'Gather=weight_bits=4' stores both in 4: "
        "the smallest file, and less accurate"
    ]


def _about_asked(asked: Sequence[int | None]) -> list[str]:
    """Of the bits that overrides ask for, where they are not those of the others."""
    if not asked:
        return []
    return [f"{plural(len(asked), 'weight')} {'takes' if len(asked) == 1 else 'take'} {asked[0]} bits, as asked"]


def _about_blocks(smaller: int, recipe: Recipe) -> list[str]:
    if not smaller:
        return []
    take = "takes smaller blocks" if smaller == 1 else "take smaller blocks"
    return [f"{plural(smaller, 'weight')} {take}, for the last one of {recipe.block} would not be full"]


def _about_experts(matrices: Sequence[Matrix], recipe: Recipe) -> list[str]:
    experts = {node for matrix in matrices if matrix.experts for node in matrix.nodes}
    if not experts:
        return []
    least = f" in {recipe.expert_bits} bits, the fewest it has" if recipe.expert_bits > recipe.bits else ""
    return [f"{len(experts)} MoE became QMoE, with weights{least} as onnxruntime's CPU lays them out"]


def _about_parted(matrices: Sequence[Matrix]) -> list[str]:
    parted = {n for matrix in matrices if matrix.multiplied for n in matrix.nodes if n.op_type == "Attention"}
    if not parted:
        return []
    return [f"{len(parted)} Attention became MatMulNBits and MultiHeadAttention, which take its weight as packed"]


def _about_shared(matrices: Sequence[Matrix]) -> list[str]:
    """Weights with several readers, which onnxruntime fuses with in its own format alone."""
    notes = []
    graphs = [Counter(node.graph for node in matrix.nodes) for matrix in matrices if matrix.multiplied]
    if several := sum(len(readers) > 1 for readers in graphs):
        notes.append(
            f"{plural(several, 'weight')} read in several branches or bodies {'is' if several == 1 else 'are'} written "
            "once for each graph that reads: onnxruntime fuses within one alone (format=matmulnbits writes once)"
        )
    if shared := sum(max(readers.values()) > 1 for readers in graphs):
        notes.append(
            f"{plural(shared, 'weight')} that several nodes multiply with {'is' if shared == 1 else 'are'} unpacked at "
            "each run, which takes long: onnxruntime fuses with one reader alone. format=matmulnbits multiplies with "
            f"{'it' if shared == 1 else 'them'} as packed"
        )
    return notes


def _is_widened(matrix: Matrix, recipe: Recipe) -> bool:
    """Whether it takes 4 bits since 2, asked for or among those to choose from, do not fit."""
    free = min(recipe.widths) if matrix.chosen else TABLE_BITS if matrix.chooses else recipe.bits
    wanted = matrix.asked or free
    return matrix.multiplied and matrix.bits(recipe) == recipe.fitting_bits(matrix.shape[0], wanted) != wanted


def _about_widened(matrices: Sequence[Matrix]) -> list[str]:
    if not matrices:
        return []
    takes = "takes" if len(matrices) == 1 else "take"
    readers = [f"{node.name} ({matrix.shape[0]})" for matrix in matrices for node in matrix.nodes]
    return [
        f"{plural(len(matrices), 'weight')} {takes} 4 bits and not 2, which onnxruntime multiplies with wrongly in the "
        f"format qdq where outputs are no multiple of 4: {listed(readers, _NAMED)}. format=matmulnbits has 2 bits there"
    ]
