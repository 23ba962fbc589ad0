"""NVFP4 as ``--algorithm nvfp4:method=gptq --backend tensorrt``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from onnxq.console.progress import Reporter
from onnxq.nvfp4.pipeline import TARGET, rewrite_nvfp4
from onnxq.nvfp4.recipe import Nvfp4
from onnxq.options import ImageOptions, Options
from onnxq.rewritten import Rewritten, refuse_unused

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TARGET", "TITLE", "check", "require", "rewrite"]

NAME = "nvfp4"
TITLE = "weights and activations as 4-bit floating-point numbers in blocks of 16: transformers, TensorRT on Blackwell"
STAGE = "model"
PARAMETERS: Mapping[str, object] = {"method": "rtn", "rotate": False, "activations": True}
HELP: Mapping[str, str] = {
    "method": "of weights: rtn (round to nearest) or gptq (rounding that makes up for its own errors)",
    "rotate": "true: turn the channels that the blocks of a transformer add to, so that none stands out; the float "
    "model stays the same. It gains where some channels are far larger than others, and loses elsewhere: compare both "
    "on --data. Of up to 2 GB of weights",
    "activations": "true: what weights are multiplied with is rounded as well, at run time, and TensorRT multiplies in "
    "FP4; false: it stays float, nothing is faster, and without gptq no --data is needed",
}
CALLED = "from onnxq.nvfp4 import quantize_nvfp4"
_USED = ("include", "exclude", "samples", "opset", "shapes", "simplify", "providers", "custom_op_library")
_HINTS = {"override": "--exclude keeps layers float", "weight_bits": "Leave it out: it has 4"}


def check(**parameters: Any) -> None:
    """Refuse wrong parameters.

    Raises:
        OptionError: a value is unknown.
    """
    Nvfp4(**parameters)


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
    """See :func:`onnxq.nvfp4.pipeline.rewrite_nvfp4`.

    Raises:
        OptionError: an option was given that has no effect here.
    """
    require(options)
    recipe = Nvfp4(**parameters)
    return rewrite_nvfp4(model, data, recipe, output=output, options=options, image=image, reporter=reporter)
