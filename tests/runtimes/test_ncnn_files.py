"""What is read of the files that pnnx writes, with a stand-in for ncnn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

import onnxq

WORKERS = Path(onnxq.__file__).parent / "runtimes" / "workers"
NCNN = """
class ModelBin:
    def __init__(self): pass

class Mat:
    def __init__(self, array): pass
    def clone(self): return self

def layer_to_index(name): return 0

class Layer:
    def load_model(self, given): return int(given.load(4, 1) is None)

class Net:
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def load_param(self, path): return 0
    def layers(self): return [Layer(), Layer()]
"""
READ = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from common import RefusedError
from ncnn_files import read_layers
try:
    print([layer.arrays[0].tolist() for layer in read_layers(Path(sys.argv[3]), Path(sys.argv[4]))])
except RefusedError as error:
    print(error)
"""


def read(folder: Path, numbers: int) -> str:
    """What becomes of two layers of four numbers each, of a file of so many."""
    (folder / "ncnn.py").write_text(NCNN)
    param, binary = folder / "m.param", folder / "m.bin"
    param.write_text("7767517\n2 2\nMemoryData first 0 1 a 0=4\nMemoryData second 0 1 b 0=4\n")
    binary.write_bytes(np.arange(numbers, dtype=np.float32).tobytes())
    command = [sys.executable, "-c", READ, str(folder), str(WORKERS), str(param), str(binary)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_weights_that_are_not_there_are_a_refusal_that_names_the_layer(tmp_path: Path) -> None:
    assert read(tmp_path, 8) == "[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]"
    assert read(tmp_path, 5) == "pnnx writes fewer weights than ncnn reads: MemoryData second asks for 4 more"
    assert read(tmp_path, 9) == "pnnx writes 36 bytes of weights, of which ncnn reads 32"
