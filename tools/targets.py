"""Write the pages of the targets, ``docs/targets``, from their tables and docstrings.

python tools/targets.py            # write them
python tools/targets.py --check    # exit code 1 where they differ from the tables, nothing is written
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from docstrings import markdown

from onnxq import plugins
from onnxq.backend import Backend, Kind, OpRule
from onnxq.catalog import backends
from onnxq.op_rule import ANY_BITS
from onnxq.rows import Never
from onnxq.spec import PerTensor, QuantSpec

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "targets"
FORMATS = {
    "qdq": "ONNX with QuantizeLinear and DequantizeLinear around float operators",
    "qdq-microsoft": "the same with the operators of onnxruntime's own domain: 4 and 16 bits below opset 21",
    "qoperator": "ONNX with integer operators (QLinearConv and the like) in place of the float ones",
    "fake-quantize": "float arithmetic on rounded values: runs anywhere, at any width, for experiments",
    "openvino-fake-quantize": "ONNX with OpenVINO's own FakeQuantize operators",
    "qonnx": "ONNX with Quant operators of QONNX, which FINN and hls4ml read",
    "context": "qdq, and beside it the model compiled for the HTP, which onnxruntime-qnn loads (needs onnxruntime-qnn)",
    "dlc": "qdq, and beside it the model as a DLC file of the Qualcomm SDK (needs onnxruntime-qnn)",
    "encodings-0.6.1": "float ONNX and a JSON file of encodings, the oldest version of its schema",
    "encodings-1.0.0": "float ONNX and a JSON file of encodings: scale, offset and bits of each tensor",
    "encodings-2.0.0": "float ONNX and a JSON file of encodings, the newest version of its schema",
    "calibration-cache": "float ONNX and a calibration cache of TensorRT 10: a scale of each activation",
    "calibration-cache-8": "the same with the first line that TensorRT 8 expects",
    "dynamic-range": "float ONNX and a JSON file with the largest magnitude of each tensor",
    "fix-positions": "float ONNX and a JSON file with the position of the binary point of each tensor",
    "ranges": "float ONNX and a text or JSON file with the range of each tensor",
    "ppl": "float ONNX and a JSON file of ranges or scales, as PPL reads it",
    "ncnn": "float ONNX and a table of scales, which ncnn2int8 reads",
    "int8": "float ONNX and its table, and beside them the int8 model of ncnn itself (needs ncnn and pnnx)",
    "gfpq": "float ONNX and a JSON file with the clip value of each layer's inputs",
    "tflite": "qdq, and beside it the TensorFlow Lite file, inputs and outputs as the model has them",
    "tflite-int8": "the same with int8 inputs and outputs where they are quantized, as microcontrollers have them",
    "tflite-int16": "the same with int16 inputs and outputs where they are quantized",
    "tengine": "float ONNX and a text file with scale and zero point of each tensor",
}
"""What the formats of all targets are, in a line each."""
_RUNTIME = "com.microsoft::"
_HEAD = "<!-- written by tools/targets.py from the target's table: change it there -->\n\n"


def main() -> int:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(description="Write the pages of the targets.")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text := pages()[path])
            print(f"wrote {path} ({len(text.splitlines())} lines)")
    return 1 if args.check and stale else 0


def pages() -> dict[Path, str]:
    """Path → text of every page, an index first."""
    found = backends()
    rows = "".join(
        f"| [{b.name}]({b.name}.md) | {b.title} | {_short(b.weight)} | {_of_data(b)} | {b.artifacts} "
        f"| {b.verified or '-'} |\n"
        for b in found
    )
    index = (
        f"{_HEAD}# Targets\n\n"
        "`onnxq quantize MODEL --data DATA --backend NAME -o OUT` writes for one of them, several `--backend` for\n"
        "several from one calibration, `onnxq deploy` takes a model that is quantized already, and `onnxq verify OUT\n"
        "--backend NAME` loads what was written into the target's own runtime, where one can be installed.\n"
        "[What each makes of real models](figures.md).\n\n"
        "Where the end of a model (decoding of boxes, NonMaxSuppression) cannot run on a target, as `onnxq check\n"
        "--backend NAME` says, cut it off before quantizing, by the names of the tensors in front of it:\n"
        "`onnx.utils.extract_model('model.onnx', 'cut.onnx', ['images'], ['boxes', 'scores'])`. Where float nodes run\n"
        "beside integer ones, `--exclude` leaves it in the model as it is. Some targets take inputs of fixed\n"
        "sizes alone: `--shape images=1x3x480x480` fixes those that a model leaves free.\n\n"
        "| name | target | weights | activations | artifacts | checked with |\n|---|---|---|---|---|---|\n" + rows
    )
    return {FOLDER / "README.md": index, **{FOLDER / f"{b.name}.md": page(b) for b in found}}


def page(target: Backend) -> str:
    """The page of one target."""
    module = inspect.getmodule(plugins.find("onnxq.backends", target.name))
    text = markdown(inspect.cleandoc((module.__doc__ if module else "") or ""))
    bits = "" if len(target.weight_bits) > 10 else f"; bits {_numbers(target.weight_bits)}"
    act_bits = "" if len(target.act_bits) > 10 else f"; bits {_numbers(target.act_bits)}"
    bias = target.bias if isinstance(target.bias, str) else str(target.bias)
    opset = f"{target.min_opset} to {target.max_opset}"
    ranges = "ranges taken at each run" if target.weights_alone else "one scale for a tensor"
    apart = target.lacks_whole
    lines = [
        f"{_HEAD}# {target.name}: {target.title}",
        "",
        text,
        "",
        "## Use",
        "",
        "```console",
        f"$ onnxq quantize model.onnx --data data.npz --backend {target.name} -o out",
        f"$ onnxq verify out --backend {target.name} --data data.npz",
        *([f"$ {target.next_step.replace('MODEL', f'out/model_{target.name}')}"] if target.next_step else []),
        "```",
        "",
        f"Written: {target.artifacts}.",
        "",
        "| `--format` | |",
        "|---|---|",
        *(f"| `{name}` | {FORMATS.get(name, '')} |" for name in target.formats),
        "",
        "## Table",
        "",
        f"- weights: {_short(target.weight)}, {_scales(target)}{bits}",
        *([f"- {_zero_points(target)}"] if target.asymmetric_weights else []),
        f"- activations: {_short(target.activation)}, {ranges}{act_bits}",
        f"- biases: {bias}",
        f"- computed together with the operator before them: {', '.join(sorted(target.absorbed)) or 'nothing'}",
        f"- opset: {opset}",
        *([f"- written out with the operators that they consist of: {_apart(apart)}"] if apart else []),
        f"- runtime for `onnxq verify`: {_runtime(target)}",
        "",
        "| operator | quantized | note |",
        "|---|---|---|",
        *(f"| {rule.op} | {_parts(rule)} | {_note(rule)} |" for rule in sorted(target.rules.values(), key=_order)),
        "",
        "## Verified",
        "",
        f"- checked with: {target.verified or 'nothing'}",
        f"- from documents only: {target.unverified or 'nothing'}",
    ]
    return "\n".join(lines) + "\n"


def _order(rule: OpRule) -> tuple[int, str]:
    return list(Kind).index(rule.kind), rule.op


def _parts(rule: OpRule) -> str:
    if isinstance(rule.when, Never):
        return f"nothing: {rule.when.fate}"
    parts = []
    if rule.kind is not Kind.WEIGHT_ONLY and rule.data != ():
        parts.append("data")
    if rule.weights:
        parts.append("weights")
    if rule.bias is not None:
        parts.append("bias")
    if rule.output and rule.kind is not Kind.WEIGHT_ONLY:
        parts.append("output")
    return ", ".join(parts)


def _note(rule: OpRule) -> str:
    if isinstance(rule.when, Never):
        return rule.when.reason
    notes = []
    if rule.kind is Kind.MOVEMENT:
        notes.append("input and output share a scale")
    elif callable(rule.same_scale):
        said = (rule.same_scale.__doc__ or "").strip().splitlines()
        notes.append(f"inputs and output share a scale of {said[0].rstrip('.') if said else 'some'}")
    elif rule.same_scale:
        notes.append("inputs and output share a scale")
    if rule.fixed is not None:
        notes.append(f"output in [{rule.fixed[0]:g}, {rule.fixed[1]:g}]")
    if isinstance(rule.activation, QuantSpec):
        notes.append(f"data {_short(rule.activation)}")
    if rule.weight is not None:
        notes.append(f"weights {_short(rule.weight)}")
    if rule.when is not None and (said := (rule.when.__doc__ or "").strip().splitlines()):
        notes.append(f"only {said[0][:1].lower()}{said[0][1:].rstrip('.')}")
    return "; ".join(notes)


def _apart(operators: Collection[str]) -> str:
    """Operators of the standard, then those of onnxruntime."""
    own = [op.removeprefix(_RUNTIME) for op in sorted(operators) if op.startswith(_RUNTIME)]
    said = [f"of onnxruntime's own {', '.join(own)}"] if own else []
    return ", ".join([*sorted(op for op in operators if "::" not in op), *said])


def _short(spec: QuantSpec) -> str:
    """The words of a spec but for its granularity, which is the row's or the options'."""
    return str(replace(spec, granularity=PerTensor())).replace(" per tensor", "")


def _of_data(target: Backend) -> str:
    """The words of what activations are, on the way to what multiplies."""
    return "int8, in the range of each run" if target.weights_alone else _short(target.activation)


def _scales(target: Backend) -> str:
    return "a scale for each output channel" if target.per_channel and target.has_channels else "one scale for a tensor"


def _zero_points(target: Backend) -> str:
    """Which weights have zero points where the target's own have none."""
    asked = "unless `--symmetric-weights`" if target.moves_weights else "with `--asymmetric-weights`"
    widths = target.asymmetric_weights
    which = "weights" if widths == ANY_BITS else f"weights of {_numbers(widths)} bits"
    return f"{which} that operators multiply with: zero points, {asked}"


def _numbers(bits: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(bits)))


def _runtime(target: Backend) -> str:
    if target.runtime is None:
        return "none of its own: the artifact is read back and simulated in onnxruntime"
    runtime = plugins.find("onnxq.runtimes", target.runtime)
    return f"{runtime.title} (`{runtime.install}`)"


if __name__ == "__main__":
    sys.exit(main())
