"""What to say where an output has another shape in the quantized model: its size depends on the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onnxq.console.terminal import plural
from onnxq.measuring.metrics import Errors

__all__ = ["other_shapes", "rows_depend"]

_CUT = (
    "Quantize the model up to what selects (NonMaxSuppression, NonZero, Compress, TopK) or decides on a length (as of "
    "sounds in speech), and go on after it (onnx.utils.extract_model cuts)"
)
_ADVICE = f"{_CUT}, or judge the whole by a metric that matches what was found (quantize --max-drop --metric)"


def other_shapes(outputs: Mapping[str, Errors]) -> Iterator[str]:
    """Warnings of a result whose outputs have other shapes than the float model's.

    Args:
        outputs: output → its errors.
    """
    found: dict[tuple[int, int], list[str]] = {}
    for name, errors in outputs.items():
        if errors.reshaped:
            found.setdefault((errors.reshaped, errors.samples), []).append(name)
    for (reshaped, samples), names in found.items():
        left = "; the figures are of the others" if reshaped < samples else ", so that no figure tells how good it is"
        yield (
            f"output {', '.join(map(repr, names))}: another shape than in the float model in {reshaped} of "
            f"{plural(samples, 'sample')}{left}: its size depends on the numbers. {_ADVICE}"
        )


def rows_depend(outputs: Iterable[str], *, metric: bool = True) -> str:
    """A warning where models were compared by outputs that have other shapes.

    Args:
        outputs: their names.
        metric: one could be given instead.
    """
    return (
        f"output {', '.join(map(repr, sorted(outputs)))} had another shape than in the float model, which counts as "
        f"wrong: its size depends on the numbers, and figures by values say little. {_ADVICE if metric else _CUT}"
    )
