"""Files with damage in them: every kind of file that onnxq reads, some bytes changed, through the verb that reads it.

Whatever a file holds, what comes of it is success or an error of `onnxq.errors`; no crash, no hang, no gigabytes.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.external_data_helper import convert_model_to_external_data

from onnxq import Options, calibrate, check, deploy, plan, quantize, verify
from onnxq.catalog import backends
from onnxq.errors import OnnxqError
from onnxq.options.config import Config
from tests.models import build, f32, images, normal
from tests.targets import BY_RUNTIMES

__all__ = ["KINDS", "Bench", "damaged", "originals", "prepare"]

SIDECARS = {
    f"{target.name} {name}": (target.name, name)
    for target in backends()
    for name, form in target.formats.items()
    if form.read is not None and (target.name, name) not in BY_RUNTIMES
}
KINDS = ("model", "external", "text", "quantized", "verified", "statistics", "data", "config", "training", *SIDECARS)
"""Kinds of files: models in their forms, what onnxq writes and reads back, and what targets' tools read."""

_MEMORY = 6 << 30
"""Bytes of address space a bench may have."""
_SECONDS = 60.0


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with a few changes: bits, runs, cuts, copies, numbers that are too large, other digits."""
    data = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 2, 4, 8]))):
        if not data:
            break
        at, kind = int(rng.integers(len(data))), int(rng.integers(8))
        length = int(rng.integers(1, 1 + min(32, len(data))))
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[at] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256))]))
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length] * int(rng.choice([1, 1, 3]))
        elif kind == 4:
            data[at : at + length] = rng.bytes(length)
        elif kind == 5 and rng.random() < 0.4:
            del data[at:]
        elif kind == 6:
            words = (b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"-1", b"1e999", b"NaN", b"null", b"{", b"\x00")
            data[at : at + int(rng.integers(3))] = words[int(rng.integers(len(words)))]
        else:
            digits = [i for i, byte in enumerate(data[at : at + 400], at) if 48 <= byte <= 57]
            if digits:
                data[digits[int(rng.integers(len(digits)))]] = 48 + int(rng.integers(10))
    return bytes(data)


# -- sound files


def _net() -> onnx.ModelProto:
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 4] y) {
            [c1] a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            [r1] r = Relu (a)
            [c2] c = Conv (r, v)
            [p] p = GlobalAveragePool (c)
            [f] f = Flatten (p)
            [g] y = Gemm <transB = 1> (f, m, n)
        }""",
        w=normal(8, 3, 3, 3),
        b=normal(8, seed=1, scale=0.1),
        v=normal(8, 8, 3, 3, seed=2),
        m=normal(4, 8, seed=3),
        n=f32([0.1, 0.2, 0.3, 0.4]),
    )


_CONFIG = """\
weight_bits = 8
range = "percentile:99.9"
exclude = ["c1"]
samples = 4
data = "d.npz"
[override]
"c2" = { bits = 16, range = "minmax" }
[image]
resize = "256"
mean = [0.485, 0.456, 0.406]
"""


def originals(folder: Path) -> dict[str, Path]:
    """Sound files of every kind, in folders of their own: the one that is to be damaged."""
    options, feeds, found = Options(placement="all"), images(1, 3, 8, 8, samples=3), dict[str, Path]()

    def place(kind: str, name: str) -> Path:
        (folder / kind).mkdir(parents=True)
        found[kind] = folder / kind / name
        return found[kind]

    onnx.save(_net(), place("model", "m.onnx"))
    big = _net()
    convert_model_to_external_data(big, location="w.bin", size_threshold=64)
    onnx.save(big, place("external", "m.onnx"))
    onnx.save(_net(), place("text", "m.textproto"))
    for kind in ("quantized", "verified"):
        quantize(_net(), feeds, options=options, output=place(kind, "q.onnx"))
    calibrate(_net(), feeds, output=place("statistics", "s.npz"), options=options)
    np.savez(place("data", "d.npz"), x=np.concatenate([feed["x"] for feed in feeds]))
    place("config", "c.toml").write_text(_CONFIG)
    _train(place("training", "state.npz"), found["quantized"])
    for kind, (backend, form) in SIDECARS.items():
        asked = replace(options, format=form)
        made = quantize(_net(), feeds, backend=backend, options=asked, output=place(kind, "q.onnx"))
        tables = [path for path in made.files if path.suffix != ".onnx"]
        found[kind] = max(tables, key=lambda path: path.stat().st_size, default=made.files[0])
    return found


def _train(state: Path, quantized: Path) -> None:
    from onnxq import finetune

    finetune(quantized, images(1, 3, 8, 8, samples=4), teacher=_net(), steps=2, batch=2, resume=state)


# -- their readers


def _readers(kind: str, path: Path, sound: dict[str, Path]) -> None:
    """What reads a file of a kind, as users would."""
    feeds, options = images(1, 3, 8, 8, samples=2), Options(placement="all")
    if kind in ("model", "external", "text"):
        check(path, options=options)
        plan(path, options=options)
        quantize(path, feeds, options=options)
    elif kind == "quantized":
        deploy(path, backend="onnxruntime")
    elif kind == "statistics":
        quantize(_net(), statistics=path, options=options)
    elif kind == "data":
        quantize(_net(), path, options=options)
    elif kind == "config":
        read = Config.read(path, run_keys=("data", "output", "model"))
        Options(**read.options)
    elif kind == "training":
        _train(path, sound["quantized"])
    else:
        models = [file for file in path.parent.iterdir() if file.suffix == ".onnx"]
        backend, _ = SIDECARS.get(kind, ("onnxruntime", ""))
        verify(models[0], feeds, backend=backend, simulation=True)


class Bench:
    """A process that reads damaged files; started again after a crash or a hang.

    Args:
        folder: with the sound files, and for the damaged ones.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.context, self.process = folder, multiprocessing.get_context("spawn"), None
        self.connection: Any = None

    def read(self, kind: str, seed: int) -> str:
        """What comes of a damaged file, or a sound one for a negative seed: ``read``, ``refused…`` or ``FAULT…``."""
        if self.process is None:
            self.connection, other = self.context.Pipe()
            self.process = self.context.Process(target=_serve, args=(other, self.folder), daemon=True)  # type: ignore
            self.process.start()  # type: ignore[attr-defined]
            other.close()
        try:
            self.connection.send((kind, seed))
            if self.connection.poll(_SECONDS):
                return str(self.connection.recv())
            self.stop()
            return f"FAULT: no end after {_SECONDS:g} s"
        except (EOFError, OSError):
            assert self.process is not None
            self.process.join(10)
            code = self.process.exitcode
            self.stop()
            return f"FAULT: the process died with exit code {code}"

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
        self.process = None


def _serve(connection: Connection, folder: Path) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what native libraries print
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    sound = {kind: next((folder / "sound" / kind).iterdir()) for kind in KINDS}
    names = {kind: folder / kind / path.name for kind, path in sound.items()}
    while True:
        try:
            kind, seed = connection.recv()
        except EOFError:
            return
        content = sound[kind].read_bytes()
        names[kind].write_bytes(content if seed < 0 else damaged(content, np.random.default_rng(seed)))
        try:
            connection.send(_outcome(lambda kind=kind: _readers(kind, names[kind], sound)))  # type: ignore[misc]
        finally:
            names[kind].write_bytes(sound[kind].read_bytes())


def _outcome(run: Callable[[], None]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            run()
        except OnnxqError as error:
            return f"refused: {type(error).__name__}: {str(error).splitlines()[0][:300]}"
        except Exception as error:
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
            spot = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
            return f"FAULT: {type(error).__name__}: {str(error)[:300]} ({spot})"
    return "read"


def prepare(folder: Path) -> Bench:
    """Sound files in a folder, and a bench that damages copies of them."""
    for kind, path in originals(folder).items():
        (folder / "sound" / kind).mkdir(parents=True)
        (folder / "sound" / kind / path.name).write_bytes(path.read_bytes())
    return Bench(folder)
