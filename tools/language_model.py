"""What weights of few bits do to a small language model, on text that it was not trained on.

    python tools/language_model.py --folder FOLDER                        # train it, then measure all variants
    python tools/language_model.py --folder FOLDER --page docs/accuracy.md --section language

The model is trained here, on the characters of Python's own sources: a decoder like those that onnxruntime-genai's
builder writes, with a cache, GroupQueryAttention, rotary embeddings, SimplifiedLayerNormalization and a head that has
the numbers of the embedding. The peer is onnxruntime's MatMulNBitsQuantizer. Trained once, it is kept in the folder.
"""

from __future__ import annotations

import argparse
import logging
import math
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from benchmarking.report import describe_machine, replace_section, table
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import matmul_nbits_quantizer as peers

from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights

__all__ = ["decoder", "feeds", "logits_of", "perplexity", "texts", "train", "windows"]

Weights = Mapping[str, NDArray[np.float32]]
VOCABULARY, WIDTH, LAYERS, HEADS, CACHES, INNER, CONTEXT = 128, 192, 4, 4, 2, 512, 128
EACH = WIDTH // HEADS
_MICROSOFT = "com.microsoft"
_WINDOWS, _BATCH = 160, 16


def texts() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Characters to train on and others, of every twentieth file."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for k, file in enumerate(files):
        parts[k % 20 == 7].append(file.read_bytes().decode("utf-8", "ignore").encode("ascii", "ignore"))
    trained, held = (np.frombuffer(b"".join(part), np.uint8).astype(np.int64) for part in parts)
    return trained, held


def train(text: NDArray[np.int64], steps: int, seed: int) -> Weights:
    """The weights of a decoder by name, linear ones of (inputs, outputs)."""
    import torch
    from torch.nn import functional

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    shapes = {"embed": (VOCABULARY, WIDTH), "norm": (WIDTH,)}
    for k in range(LAYERS):
        narrow = CACHES * EACH
        shapes |= {f"{k}.norm1": (WIDTH,), f"{k}.norm2": (WIDTH,), f"{k}.q": (WIDTH, WIDTH), f"{k}.k": (WIDTH, narrow)}
        shapes |= {f"{k}.v": (WIDTH, narrow), f"{k}.o": (WIDTH, WIDTH), f"{k}.gate": (WIDTH, INNER)}
        shapes |= {f"{k}.up": (WIDTH, INNER), f"{k}.down": (INNER, WIDTH)}
    w = {n: torch.ones(s) if len(s) == 1 else torch.randn(s) * 0.02 for n, s in shapes.items()}
    for tensor in w.values():
        tensor.requires_grad_()
    angles = torch.from_numpy(_angles())
    cos, sin = angles.cos(), angles.sin()

    def norm(x: Any, gain: Any) -> Any:
        return gain * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)

    def heads(x: Any, count: int, *, turn: bool) -> Any:
        x = x.unflatten(-1, (count, EACH)).transpose(1, 2)
        a, b = x.chunk(2, -1)
        x = torch.cat((a * cos - b * sin, b * cos + a * sin), -1) if turn else x
        return x.repeat_interleave(HEADS // count, 1)

    def logits(tokens: Any) -> Any:
        x = w["embed"][tokens]
        for k in range(LAYERS):
            n = norm(x, w[f"{k}.norm1"])
            q, key = heads(n @ w[f"{k}.q"], HEADS, turn=True), heads(n @ w[f"{k}.k"], CACHES, turn=True)
            v = heads(n @ w[f"{k}.v"], CACHES, turn=False)
            mixed = functional.scaled_dot_product_attention(q, key, v, is_causal=True)
            x = x + mixed.transpose(1, 2).flatten(2) @ w[f"{k}.o"]
            n = norm(x, w[f"{k}.norm2"])
            x = x + (functional.silu(n @ w[f"{k}.gate"]) * (n @ w[f"{k}.up"])) @ w[f"{k}.down"]
        return norm(x, w["norm"]) @ w["embed"].T

    optimizer = torch.optim.AdamW(w.values(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    data = torch.from_numpy(text)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1, step / 50) * (0.51 + 0.49 * math.cos(math.pi * step / steps))
        rows = data[torch.randint(len(data) - CONTEXT - 1, (12, 1)) + torch.arange(CONTEXT + 1)]
        loss = functional.cross_entropy(logits(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
    return {name: tensor.detach().numpy() for name, tensor in w.items()}


def _angles() -> NDArray[np.float32]:
    return np.outer(np.arange(CONTEXT), 10000.0 ** (-np.arange(0, EACH, 2) / EACH)).astype(np.float32)


def decoder(weights: Weights) -> onnx.ModelProto:
    """The model: tokens, mask and caches to logits and caches."""
    constants = {**weights, "head": weights["embed"].T, "cos": np.cos(_angles()), "sin": np.sin(_angles())}
    constants |= {"one": np.array([1], np.int64), "axis": np.array(1, np.int64)}
    nodes: list[onnx.NodeProto] = []

    def add(op: str, inputs: list[str], *outputs: str, domain: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, outputs, name=f"{outputs[0]}.{op}", domain=domain, **attributes))
        return outputs[0]

    def norm(x: str, gain: str, out: str) -> str:
        return add("SimplifiedLayerNormalization", [x, gain], out, axis=-1, epsilon=1e-5)

    kinds: dict[str, list[str | int | None]] = {"input_ids": ["batch", "length"], "attention_mask": ["batch", "total"]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, s) for n, s in kinds.items()]
    shape: list[str | int | None] = ["batch", "length", VOCABULARY]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)]
    last = add("Sub", [add("ReduceSum", ["attention_mask", "one"], "count", keepdims=0), "one"], "last")
    length = add("Gather", [add("Shape", ["attention_mask"], "shape"), "axis"], "all")
    lengths = [add("Cast", [name], f"{name}32", to=TensorProto.INT32) for name in (last, length)]
    x = add("Gather", ["embed", "input_ids"], "embedded")
    for k in range(LAYERS):
        past, present = ([f"{word}.{k}.{part}" for part in ("key", "value")] for word in ("past", "present"))
        for names, infos in ((past, inputs), (present, outputs)):
            sizes: list[str | int | None] = ["batch", CACHES, "past" if infos is inputs else "total", EACH]
            infos += [helper.make_tensor_value_info(n, TensorProto.FLOAT, sizes) for n in names]
        n = norm(x, f"{k}.norm1", f"{k}.in")
        parts = [add("MatMul", [n, f"{k}.{part}"], f"{k}.{part}_proj") for part in "qkv"]
        counts = {"num_heads": HEADS, "kv_num_heads": CACHES, "do_rotary": 1}
        operands = [*parts, *past, *lengths, "cos", "sin"]
        mixed = add("GroupQueryAttention", operands, f"{k}.mixed", *present, domain=_MICROSOFT, **counts)
        x = add("Add", [x, add("MatMul", [mixed, f"{k}.o"], f"{k}.o_proj")], f"{k}.middle")
        n = norm(x, f"{k}.norm2", f"{k}.inside")
        gate, up = (add("MatMul", [n, f"{k}.{part}"], f"{k}.{part}_proj") for part in ("gate", "up"))
        active = add("Mul", [gate, add("Sigmoid", [gate], f"{k}.share")], f"{k}.silu")
        wide = add("Mul", [active, up], f"{k}.active")
        x = add("Add", [x, add("MatMul", [wide, f"{k}.down"], f"{k}.down_proj")], f"{k}.out")
    add("MatMul", [norm(x, "norm", "normal"), "head"], "logits")
    stored = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(_MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def feeds(tokens: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """What the model reads for tokens of (batch, length), with empty caches."""
    empty = np.zeros((len(tokens), CACHES, 0, EACH), np.float32)
    caches = {f"past.{k}.{part}": empty for k in range(LAYERS) for part in ("key", "value")}
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens), **caches}


def windows(text: NDArray[np.int64]) -> NDArray[np.int64]:
    """Characters in windows spread over a text, with the one that follows each: (windows, length + 1)."""
    starts = np.linspace(0, len(text) - CONTEXT - 1, _WINDOWS).astype(np.int64)
    return np.asarray(text[starts[:, None] + np.arange(CONTEXT + 1)])


def logits_of(model: Path, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """What a model gives for windows, without the last character: (windows, length, vocabulary)."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = ort.InferenceSession(str(model), options)
    parts = np.split(rows[:, :-1], _WINDOWS // _BATCH)
    return np.concatenate([session.run(["logits"], feeds(part))[0] for part in parts])


def perplexity(logits: NDArray[np.float32], rows: NDArray[np.int64]) -> float:
    """Of the characters in windows."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return math.exp(-float(np.take_along_axis(wide, rows[:, 1:, None], 2).mean()))


def _variants(source: Path, data: list[dict[str, NDArray[Any]]]) -> dict[str, Callable[[Path], object]]:
    def ours(**options: Any) -> Callable[[Path], object]:
        learned = options.get("method") == "gptq" or "avg_bits" in options
        used = {"data": data if learned and not options.pop("blind", False) else None, **options}
        return lambda path: quantize_weights(source, path, format="matmulnbits", **{"symmetric": False, **used})

    def theirs(config: Any) -> Callable[[Path], object]:
        def run(path: Path) -> None:
            quantizer = peers.MatMulNBitsQuantizer(onnx.load(source), algo_config=config, block_size=32)
            quantizer.process()
            quantizer.model.save_model_to_file(str(path))

        return run

    # what onnxruntime-genai's builder gives 8 bits by k_quant_mixed
    some = [k for k in range(LAYERS) if k < LAYERS / 8 or k >= 7 * LAYERS / 8 or (k - LAYERS // 8) % 3 == 2]
    wide = [f"{k}.{part}_proj.MatMul" for k in some for part in ("v", "down")] + ["logits.MatMul"]
    mixed = peers.KQuantWeightOnlyQuantConfig(customized_weight_config={name: {"bits": 8} for name in wide})
    plain = peers.DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=False, accuracy_level=4)
    return {
        "4 bits": ours(),
        "4 bits, hqq": ours(method="hqq"),
        "4 bits, gptq": ours(method="gptq"),
        "avg_bits=4.5": ours(avg_bits=4.5),
        "avg_bits=4.5, gptq": ours(avg_bits=4.5, method="gptq"),
        "avg_bits=4.5, no data": ours(avg_bits=4.5, blind=True),
        "avg_bits=5": ours(avg_bits=5),
        "avg_bits=3.5, gptq": ours(avg_bits=3.5, method="gptq"),
        "2 bits, gptq": ours(bits=2, method="gptq"),
        "onnxruntime, 4 bits": theirs(plain),
        "onnxruntime, HQQ": theirs(peers.HQQWeightOnlyQuantConfig(block_size=32)),
        "onnxruntime, k_quant": theirs(peers.KQuantWeightOnlyQuantConfig()),
        "onnxruntime, k_quant_mixed": theirs(mixed),
    }


def main() -> None:
    """Train and measure."""
    parser = argparse.ArgumentParser(description="Perplexity of a small language model in few bits.")
    parser.add_argument("--folder", type=Path, required=True, help="where the models are kept")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path, help="also put the table into this Markdown file, into its section")
    parser.add_argument("--section", default="language")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    trained, held = texts()
    args.folder.mkdir(parents=True, exist_ok=True)
    source = args.folder / f"decoder.{args.steps}.{args.seed}.onnx"
    if not source.exists():
        onnx.save(decoder(train(trained, args.steps, args.seed)), source)
    starts = np.random.default_rng(args.seed).integers(0, len(trained) - CONTEXT, 32)
    data = [feeds(trained[start : start + CONTEXT][None]) for start in starts]
    rows = windows(held)
    reference = logits_of(source, rows)
    cells = [["float", "", f"{perplexity(reference, rows):.4f}", f"{source.stat().st_size / 1e3:.0f}", ""]]
    for name, make in _variants(source, data).items():
        path = args.folder / "made.onnx"
        start = time.process_time()
        make(path)
        spent = time.process_time() - start
        made = logits_of(path, rows)
        figures = [f"{sqnr(reference, made):.1f}", f"{perplexity(made, rows):.4f}"]
        cells.append([name, *figures, f"{path.stat().st_size / 1e3:.0f}", f"{spent:.1f}"])
    head = ("variant", "SQNR dB of the logits", "perplexity", "file kB", "CPU s")
    text = f"{describe_machine(1)}\n{table(head, cells, range(1, 5))}"
    print(text)
    if args.page:
        replace_section(args.page, args.section, text)


if __name__ == "__main__":
    main()
