"""How results look on a terminal: one summary each, aligned, no more than is needed.

``results`` shows what was made, ``in_runtime`` how an artifact does where it runs, ``measurements`` what was found out
about a model, ``listings`` what there is; ``parts`` is what they share.
"""

from __future__ import annotations

from onnxq.views.in_runtime import agreement
from onnxq.views.listings import algorithms, algorithms_in_detail, backends, demo, shown
from onnxq.views.measurements import calibrated, comparison, findings, plan, sensitivity
from onnxq.views.results import below_floor, quantized, rewritten, several

__all__ = [
    "agreement",
    "algorithms",
    "algorithms_in_detail",
    "backends",
    "below_floor",
    "calibrated",
    "comparison",
    "demo",
    "findings",
    "plan",
    "quantized",
    "rewritten",
    "sensitivity",
    "several",
    "shown",
]
