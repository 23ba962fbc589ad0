"""A transformer with more than 2.1 GB of float weights, quantized in a process whose memory is measured."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.running import open_session

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak"),
]
"""``getrusage`` would give that of the process that started the child, where it is larger."""

_TOOL = Path(__file__).parents[2] / "tools" / "big_transformer.py"
_LARGEST = 2048 * 8192 * 4
_BOUND = 1.5 * _LARGEST + 300e6

_CHILD = """
import json, sys
from pathlib import Path
from onnxq.weight_only import quantize_weights
method, format, data = sys.argv[3:6]
result = quantize_weights(sys.argv[1], sys.argv[2], method=method, format=format, data=data or None)
worst = result.verification.worst
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
print(json.dumps({"peak": 1024 * int(status["VmHWM"].split()[0]), "notes": result.notes,
                  "sqnr": worst and worst[1].sqnr, "quantized": len(result.quantized)}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("big")
    if shutil.disk_usage(folder).free < 8e9:
        pytest.skip("8 GB of disk space are needed")
    path = folder / "big.onnx"
    command = [sys.executable, str(_TOOL), str(path), "--layers", "11", "--width", "2048", "--vocabulary", "4096"]
    subprocess.run([*command, "--data", str(folder / "tokens.npz"), "--samples", "8"], check=True)
    assert path.with_name("big.onnx.data").stat().st_size > 2.1e9
    yield path
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("method", "format", "data"), [("rtn", "qdq", False), ("rtn", "matmulnbits", True), ("gptq", "matmulnbits", True)]
)
def test_memory_does_not_grow_with_the_model(model: Path, method: str, format: str, data: bool) -> None:
    output = model.with_name("q.onnx")
    samples = str(model.with_name("tokens.npz")) if data else ""
    command = [sys.executable, "-c", _CHILD, str(model), str(output), method, format, samples]
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert done["peak"] <= _BOUND
    assert done["quantized"] == 11 * 6 + 2
    if method == "gptq":
        (note,) = [note for note in done["notes"] if note.startswith("gptq")]
        assert float(note.split("in power (")[1].split()[0]) <= 0.8
    session = open_session(output)
    (logits,) = session.run(None, {"tokens": np.arange(16)[None]})
    assert logits.shape == (1, 16, 256) and np.isfinite(logits).all()
    assert not [p for p in output.parent.iterdir() if p.name.endswith(".tmp")]
    onnx.checker.check_model(str(output))
