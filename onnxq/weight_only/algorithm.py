"""Weight-only quantization as ``--algorithm weight_only:bits=4,block=32,method=gptq``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from onnxq.console.progress import Reporter
from onnxq.options import ImageOptions, Options
from onnxq.rewritten import Rewritten, refuse_unused
from onnxq.weight_only.find import check_overrides
from onnxq.weight_only.mix import require_folder
from onnxq.weight_only.pipeline import rewrite_weights
from onnxq.weight_only.recipe import FASTEST, Recipe

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "check", "require", "rewrite"]

NAME = "weight_only"
TITLE = "weights of 4, 8 or 2 bits in blocks, activations float; a pipeline of its own, for transformers of any size"
STAGE = "model"
PARAMETERS: Mapping[str, object] = {
    "bits": 4,
    "block": 32,
    "symmetric": True,
    "method": "rtn",
    "format": "qdq",
    "accuracy_level": FASTEST,
    "avg_bits": 0.0,
    "rotate": False,
    "save": "",
}
HELP: Mapping[str, str] = {
    "bits": "bits of a weight: 4, 8 or 2 (in blocks of 32, 64 or 128, for onnxruntime 1.26 or later; with format=qdq "
    "of opset 25, and only where the outputs are a multiple of 4, others take 4); tables that rows are picked from, of "
    "embeddings say, take 8, and weights whose product is picked from, of a router of experts say; --override "
    "'PATTERN=weight_bits=8' gives others 8 as well",
    "block": "weights along the input axis that share a scale: 16, 32, 64, 128 or 256; fewer are more accurate and "
    "larger",
    "symmetric": "true: integers around 0; false: a zero point for each block, mostly more accurate, a little larger",
    "method": "rtn (round to nearest), hqq (scales and zero points that ignore outliers) or gptq (rounding that makes "
    "up for its own errors: the one that needs --data)",
    "format": "qdq (standard ONNX of opset 21: DequantizeLinear with blocks, which onnxruntime multiplies as at "
    "accuracy_level=4, unless its session option session.qdq_matmulnbits_accuracy_level is 0) or matmulnbits "
    "(onnxruntime's own MatMulNBits, which its Attention becomes one of as well, GatherBlockQuantized and QMoE; 4 bits "
    "symmetric are more accurate there, since scales may lie below 0)",
    "accuracy_level": "with format=matmulnbits: 4 lets onnxruntime round activations to 8 bits while it multiplies, 0 "
    "or 1 multiply in float32 (slower)",
    "avg_bits": "budget in place of bits, as in 4.5: bits on average of the weights that are multiplied with; each "
    "takes 4 or 8 (below 4, in blocks of 32, 64 or 128, 2 as well), the more the worse the outputs get by it alone in "
    "4, on samples of --data; without data, the more the worse it is rounded; 0: not used",
    "rotate": "true: turn the channels that the blocks of a transformer add to, so that none stands out in a block of "
    "weights; the float model stays the same. It gains where some channels are far larger than others, in 2 bits with "
    "method=gptq above all, and loses elsewhere: compare both on --data. A head no longer has the numbers of the "
    "embedding, and its 8 bits. Of up to 2 GB of weights",
    "save": "configuration file (.toml) to write the choice of avg_bits to, for --config; empty: none",
}
CALLED = "from onnxq.weight_only import quantize_weights"
_USED = ("include", "exclude", "override", "samples", "opset", "shapes", "simplify", "providers", "custom_op_library")
_HINTS = {
    "weight_bits": "Write weight_only:bits={value}; it has 2, 4 and 8",
    "format": "Write weight_only:format=qdq or format=matmulnbits",
    "symmetric": "Of weights: weight_only:symmetric={value}",
    "weight_symmetric": "Write weight_only:symmetric={value}",
}


def check(**parameters: Any) -> None:
    """Refuse wrong parameters.

    Raises:
        OptionError: a value is unknown.
    """
    save = parameters.pop("save", "")
    require_folder(save, Recipe(**parameters))


def require(options: Options) -> None:
    """Refuse options that have no effect here.

    Raises:
        OptionError: one was given.
    """
    refuse_unused(options, NAME, _USED, _HINTS)
    check_overrides(options)


def rewrite(
    model: str | os.PathLike[str],
    data: Any,
    *,
    output: str | os.PathLike[str],
    options: Options,
    image: ImageOptions | None = None,
    reporter: Reporter | None = None,
    save: str = "",
    **parameters: Any,
) -> Rewritten:
    """See :func:`onnxq.weight_only.pipeline.rewrite_weights`.

    Raises:
        OptionError: an option was given that has no effect here.
    """
    require(options)
    recipe = Recipe(**parameters)
    return rewrite_weights(
        model, data, recipe, output=output, options=options, image=image, reporter=reporter, save=save
    )
