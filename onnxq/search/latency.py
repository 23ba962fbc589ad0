"""How long a model takes, as a share of the float model's time; and which models must take equally long."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.ort.session import Session

__all__ = ["share_of_time", "structure"]

_BUDGET = 1.0
"""Seconds for each of the two models."""
_LEAST, _MOST = 3, 100


def share_of_time(
    reference: Session, result: Session, feeds: Mapping[str, NDArray[Any]], *, clock: Callable[[], float]
) -> float:
    """Best time of the result over best time of the reference, run in turn so that both see the same machine.

    Args:
        reference: the float model, one thread.
        result: the other, one thread.
        feeds: one sample.
        clock: seconds. With one thread on the CPU onnxruntime computes in the calling thread, whose CPU time
            (``time.thread_time``) is the latency without what other processes take; else ``time.perf_counter``.

    Returns:
        Below 1 where the result is faster.
    """
    best = [float("inf"), float("inf")]
    spent = [0.0, 0.0]
    for turn in range(_MOST + 1):
        for which, session in enumerate((reference, result)):
            start = clock()
            session.run(feeds)
            took = clock() - start
            if turn:  # the first run warms up
                best[which] = min(best[which], took)
                spent[which] += took
        if turn >= _LEAST and max(spent) > _BUDGET:
            break
    return best[1] / best[0]


def structure(model: ir.Model) -> str:
    """A digest of a model's operators and the types and shapes of its constants: what speed depends on.

    Models that differ in weights and scales only have the same one.
    """
    sha = hashlib.sha256()
    for graph in (model.graph, *model.graph.subgraphs()):
        for name, value in graph.initializers.items():
            sha.update(repr((name, str(value.dtype), str(value.shape))).encode())
    for node in model.graph.all_nodes():
        inputs = [None if value is None else value.name for value in node.inputs]
        sha.update(repr((node.domain, node.op_type, inputs, [value.name for value in node.outputs])).encode())
    return sha.hexdigest()
