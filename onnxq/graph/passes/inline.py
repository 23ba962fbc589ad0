"""Calls of model-local functions give way to their bodies."""

from __future__ import annotations

from collections.abc import Collection

import onnx
import onnx.inliner
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnxq.errors import ModelError
from onnxq.graph.note import Note
from onnxq.graph.passes.opset import changed_operators
from onnxq.graph.skeleton import adopt, skeleton

__all__ = ["inline_functions", "relabel_functions"]


def inline_functions(model: ir.Model, keep: Collection[tuple[str, str]] = ()) -> list[Note]:
    """Inlines every function, so that only operators remain; definitions that nothing calls are dropped.

    A function written for another opset than the model's is converted on the way.

    Args:
        model: changed in place.
        keep: (domain, name) of functions that stay functions.

    Raises:
        ModelError: functions call each other in a circle, or one cannot be brought to the model's opset.
    """
    kept = {key: model.functions.pop(key) for key in list(model.functions) if key[:2] in keep}
    if not model.functions:
        model.functions.update(kept)
        return []
    called = {node.op_identifier() for node in ir.traversal.RecursiveGraphIterator(model.graph)} & set(model.functions)
    names = ", ".join(sorted(f"{domain}::{name}" if domain else name for domain, name, _ in called))
    try:
        if not _one_version(model):
            proto, big = skeleton(model)
            inlined = onnx.inliner.inline_local_functions(
                onnx.shape_inference.infer_shapes(proto), convert_version=True
            )
            _rename_redefined(inlined.graph)
            adopt(model, inlined, big)
        else:
            InlinePass()(model)
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError(
            f"its functions cannot be inlined: {cause}",
            where="invalid model",
            hint="Export the model without functions",
        ) from error
    model.functions.clear()
    model.functions.update(kept)
    return [Note("inline", "", f"functions inlined: {names}" if names else "functions that nothing calls dropped")]


def relabel_functions(model: ir.Model) -> list[Note]:
    """Lets functions that were kept declare the model's own opset, where their operators mean the same in both."""
    opset = model.opset_imports.get("", 0)
    for function in model.functions.values():
        own = function.opset_imports.get("", opset)
        if own < opset and not changed_operators(function.graph, own, opset):
            function.opset_imports[""] = opset
    return []


def _one_version(model: ir.Model) -> bool:
    """Brings model and functions to one opset where relabelling is enough; whether they share one afterwards."""
    owners = [(model.graph, model.opset_imports), *((f.graph, f.opset_imports) for f in model.functions.values())]
    for domain in {domain for _, imports in owners for domain in imports}:
        versions = {imports[domain] for _, imports in owners if domain in imports}
        if len(versions) == 1:
            continue
        newest = max(versions)
        if domain != "" or any(
            changed_operators(graph, imports[""], newest) for graph, imports in owners if "" in imports
        ):
            return False
        for _, imports in owners:
            if "" in imports:
                imports[""] = newest
    return True


def _rename_redefined(graph: onnx.GraphProto) -> None:
    """Gives tensors names of their own where the inliner's conversion used one twice, the later reads following."""
    taken: set[str] = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    current: dict[str, str] = {}

    def read(node: onnx.NodeProto) -> None:
        for index, name in enumerate(node.input):
            node.input[index] = current.get(name, name)
        for attribute in node.attribute:
            for inner in attribute.g.node if attribute.HasField("g") else ():
                read(inner)

    for node in graph.node:
        read(node)
        for index, name in enumerate(node.output):
            if name and name in taken:
                count = 1
                while f"{name}_{count}" in taken:
                    count += 1
                node.output[index] = current[name] = f"{name}_{count}"
            taken.add(node.output[index])
    del graph.value_info[:]
