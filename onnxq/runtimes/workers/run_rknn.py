"""Build a QDQ model with RKNN-Toolkit2 and run it in the simulator; integer operators are those that read integers.

The toolkit prints to stdout, and its builder may crash or hang: it runs in a process of its own anyhow.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

from common import Request, serve


def version() -> str:
    try:
        import rknn.api  # noqa: F401
    except ModuleNotFoundError as error:  # it also asks for pkg_resources, which new setuptools have not
        raise ImportError(str(error)) from error
    return metadata.version("rknn-toolkit2")


def run(request: Request) -> dict[str, Any]:
    import onnx
    from rknn.api import RKNN

    model = onnx.load(str(request.model), load_external_data=False)
    outputs = with_data(model)
    samples = list(request.feeds())
    toolkit = RKNN(verbose=False)

    def demand(step: str, code: int) -> None:
        if code != 0:
            print(f"RKNN-Toolkit2 refuses the model: {step} gives {code}", file=sys.stderr)
            sys.exit(1)

    demand("config", toolkit.config(target_platform=request.options["target_platform"]) or 0)
    names = [name for name in samples[0] if name in read(model.graph)] if samples else None
    shapes = [list(samples[0][name].shape) for name in names] if names is not None else None
    demand("load_onnx", toolkit.load_onnx(str(request.model), inputs=names, input_size_list=shapes))
    demand("build", toolkit.build(do_quantization=False))
    exported = request.results / "model.rknn"
    demand("export_rknn", toolkit.export_rknn(str(exported)))
    if samples:
        demand("init_runtime", toolkit.init_runtime())
    for index, feeds in enumerate(samples):
        arrays = [feeds[name] for name in names or ()]
        layouts = ["nchw"] * len(arrays)  # of no meaning but for arrays of four dimensions, which it takes for NHWC
        results = toolkit.inference(inputs=arrays, data_format=layouts)
        if results is None or len(results) != len(outputs):
            count = 0 if results is None else len(results)
            print(f"RKNN-Toolkit2 gives {count} outputs of {len(outputs)}, and does not say which", file=sys.stderr)
            sys.exit(1)
        request.write(index, results)
    size = exported.stat().st_size
    toolkit.release()
    return {"outputs": outputs, "remarks": [f"model.rknn for {request.options['target_platform']}: {size} bytes"]}


def read(graph: Any) -> set[str]:
    """Names that the nodes of a graph read: the toolkit takes no input that none does."""
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return {name for node in graph.node for name in node.input}.union(*map(read, inner))


def with_data(model: Any) -> list[str]:
    """Outputs that depend on what inputs hold, not on their sizes alone: the toolkit drops the others, constants."""
    constants = {tensor.name for tensor in model.graph.initializer}
    moving = {value.name for value in model.graph.input} - constants
    for node in model.graph.node:
        within = any(attribute.HasField("g") for attribute in node.attribute)
        if within or (moving & set(node.input) and node.op_type not in ("Shape", "Size")):
            moving.update(node.output)
    return [value.name for value in model.graph.output if value.name in moving]


if __name__ == "__main__":
    sys.exit(serve(version, run))
