"""The jobs of `tools/benchmark.py`, each run in a process of its own.

Every onnxruntime session in such a process, onnxq's and those of onnxruntime's quantizer alike, runs on the given
number of threads without spinning, so that CPU seconds are those of the work.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarking.power import Power

Feeds = dict[str, np.ndarray]
COMPUTE = ["Conv", "MatMul", "Gemm"]


def prepare(model: str, data: str, folder: str, samples: int | None, held_out: int) -> dict[str, Any]:
    """Write calibration and evaluation samples, a file each, that every tool then reads in the same way.

    Args:
        model: path of the float model.
        data: any data source of onnxq.
        folder: where to write ``calib/`` and ``eval/``.
        samples: how many to calibrate with; repeated where there are fewer. None takes all.
        held_out: how many to evaluate on; those that calibration does not use where there are some.
    """
    import onnxq

    every = [dict(feeds) for feeds in onnxq.open_data(data, onnxq.Session(model).inputs)]
    count = samples or len(every)
    rest = every[count : count + held_out]
    sets = {"calib": list(islice(cycle(every), count)), "eval": rest or every[:held_out]}
    for name, feeds in sets.items():
        target = Path(folder) / name
        target.mkdir(parents=True)
        for i, sample in enumerate(feeds):
            np.savez(target / f"{i:06d}.npz", **sample)  # type: ignore[arg-type]
    return {
        "samples": count,
        "distinct": min(count, len(every)),
        "evaluated": len(sets["eval"]),
        "held_out": bool(rest),
    }


def infer(model: str, folder: str) -> dict[str, Any]:
    """Plain float inference of all samples: CPU seconds of the runs alone."""
    session = _session(model)
    seconds = 0.0
    for feeds in _samples(folder):
        start = time.process_time()
        session.run(None, feeds)
        seconds += time.process_time() - start
    return {"seconds": seconds}


def quantize_onnxq(model: str, data: str, output: str, samples: int | None = None) -> dict[str, Any]:
    """``onnxq quantize`` with default settings."""
    from onnxq.cli import main

    limit = ["--samples", str(samples)] if samples else []
    code = main(["quantize", model, "--data", data, "-o", output, "--quiet", *limit])
    if code not in (0, 3):
        raise RuntimeError(f"onnxq failed with exit code {code}")
    return {"remark": "below the floor of 10 dB" if code == 3 else ""}


def quantize_onnxruntime(
    model: str, data: str, output: str, method: str, shapes: str | None, compute_only: bool
) -> dict[str, Any]:
    """onnxruntime's quantizer as its documentation recommends: pre-process, QDQ, uint8 / int8 per channel."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.samples = _samples(data)

        def get_next(self) -> Feeds | None:
            return next(self.samples, None)

    remarks = ["Conv, MatMul and Gemm only"] if compute_only else []
    source, prepared = model, output + ".pre.onnx"
    if shapes is None:
        remarks.append("not pre-processed")
    else:
        quant_pre_process(model, prepared, skip_symbolic_shape=shapes == "plain")
        source = prepared
    quantize_static(
        source,
        output,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod[method],
        op_types_to_quantize=COMPUTE if compute_only else None,
    )
    Path(prepared).unlink(missing_ok=True)
    try:
        _session(output)
    except Exception as error:
        raise RuntimeError(f"result does not load: {_brief(error)}") from error
    return {"remark": "; ".join(remarks)}


def measure(model: str, results: dict[str, str], folder: str, rounds: int, seconds: float) -> dict[str, Any]:
    """SQNR of results against the float model, and their latency relative to it, runs taken in turn.

    Args:
        model: path of the float model.
        results: name → path.
        folder: of the samples; the first is timed.
        rounds: most runs to time of each model.
        seconds: about how long to time each model.

    Returns:
        Result name → ``sqnr`` in dB of the worst float output, ``latency`` as median ratio of CPU times, or ``error``.
    """
    reference = _session(model)
    sessions: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    for name, path in results.items():
        try:
            sessions[name] = _session(path)
            found[name] = {}
        except Exception as error:  # noqa: PERF203
            found[name] = {"error": f"result does not load: {_brief(error)}"}
    names = [output.name for output in reference.get_outputs()]
    power = {result: Power() for result in sessions}
    first: Feeds = {}
    for feeds in _samples(folder):
        first = first or feeds
        expected = reference.run(names, feeds)
        for result in list(sessions):
            try:
                power[result].add(names, expected, sessions[result].run(names, feeds))
            except Exception as error:  # noqa: PERF203
                found[result] = {"error": f"result does not run: {_brief(error)}"}
                del sessions[result]
    for result in sessions:
        found[result]["sqnr"] = power[result].worst()
    ratios = _latencies(reference, sessions, first, rounds, seconds)
    for result in sessions:
        found[result]["latency"] = ratios[result]
    return {"results": found}


def _latencies(reference: Any, sessions: dict[str, Any], feeds: Feeds, rounds: int, seconds: float) -> dict[str, float]:
    """Median over rounds of CPU time over the float model's in the same round; the first two rounds warm up."""
    all_sessions = {"": reference, **sessions}
    times: dict[str, list[float]] = {name: [] for name in all_sessions}
    end = time.perf_counter() + seconds * len(all_sessions)
    for turn in range(rounds + 2):
        for name, session in all_sessions.items():
            start = time.process_time()
            session.run(None, feeds)
            if turn >= 2:
                times[name].append(time.process_time() - start)
        if turn >= 7 and time.perf_counter() > end:
            break
    base = np.array(times.pop(""))
    return {name: float(np.median(np.array(series) / base)) for name, series in times.items()}


def _session(model: str) -> Any:
    options = ort.SessionOptions()  # threads: see main
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _samples(folder: str) -> Iterator[Feeds]:
    for path in sorted(Path(folder).iterdir()):
        with np.load(path, allow_pickle=False) as archive:
            yield {name: archive[name] for name in archive.files}


def _brief(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200]


def main() -> int:
    """``python -m benchmarking.jobs JOB ARGUMENTS ANSWER THREADS``: run a job, write its answer as JSON.

    Errors are an answer too.
    """
    job, arguments, answer, threads = sys.argv[1:]
    ordinary = ort.SessionOptions

    class Options(ordinary):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = int(threads)
            self.inter_op_num_threads = 1
            if int(threads) > 1:
                self.add_session_config_entry("session.intra_op.allow_spinning", "0")

    ort.SessionOptions = Options
    try:
        result = globals()[job](**json.loads(arguments))
    except Exception as error:
        result = {"error": _brief(error)}
    with contextlib.suppress(OSError):
        Path(answer).write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
