"""Weight-only quantization as ``--algorithm weight_only:bits=4,block=32,method=gptq``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from onnxq.console.progress import Reporter
from onnxq.options import ImageOptions, Options
from onnxq.rewritten import Rewritten, refuse_unused
from onnxq.weight_only.pipeline import rewrite_weights
from onnxq.weight_only.recipe import FASTEST, Recipe

__all__ = ["NAME", "PARAMETERS", "STAGE", "TITLE", "check", "require", "rewrite"]

NAME = "weight_only"
TITLE = "4- or 8-bit weights in blocks, activations float; a pipeline of its own, for transformers of any size"
STAGE = "model"
PARAMETERS: Mapping[str, object] = {
    "bits": 4,
    "block": 32,
    "symmetric": True,
    "method": "rtn",
    "format": "qdq",
    "accuracy_level": FASTEST,
}
CALLED = "from onnxq.weight_only import quantize_weights"
_USED = ("include", "exclude", "samples", "opset", "simplify", "providers", "custom_op_library")
_HINTS = {
    "weight_bits": "Write weight_only:bits={value}; it has 4 and 8",
    "format": "Write weight_only:format=qdq or format=matmulnbits",
    "symmetric": "Of weights: weight_only:symmetric={value}",
}


def check(**parameters: Any) -> None:
    """Refuse wrong parameters.

    Raises:
        OptionError: a value is unknown.
    """
    Recipe(**parameters)


def require(options: Options) -> None:
    """Refuse options that have no effect here.

    Raises:
        OptionError: one was given.
    """
    refuse_unused(options, NAME, _USED, _HINTS)


def rewrite(
    model: str | os.PathLike[str],
    data: Any,
    *,
    output: str | os.PathLike[str],
    options: Options,
    image: ImageOptions | None = None,
    reporter: Reporter | None = None,
    **parameters: Any,
) -> Rewritten:
    """See :func:`onnxq.weight_only.pipeline.rewrite_weights`.

    Raises:
        OptionError: an option was given that has no effect here.
    """
    require(options)
    recipe = Recipe(**parameters)
    return rewrite_weights(model, data, recipe, output=output, options=options, image=image, reporter=reporter)
