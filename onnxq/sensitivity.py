"""Which layers hurt: the weights of each layer, and each activation, quantized alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxq.backend import Backend
from onnxq.backend_choice import backend_named
from onnxq.calibration.roles import spread
from onnxq.calibration.statistics import Statistics, model_digest
from onnxq.console.progress import Reporter, Silent
from onnxq.errors import OptionError, OutputError, StatisticsError
from onnxq.file_system import write_text
from onnxq.graph.values import filled_values
from onnxq.locations import made_folder, require_file, spare
from onnxq.measuring.decibels import sqnr_of
from onnxq.measuring.picked import as_compared
from onnxq.measuring.probe import Probe, Role, Setting, parts_of
from onnxq.measuring.sensitivities import Sensitivity, SensitivityRow
from onnxq.notes.cautions import came_quantized
from onnxq.notes.other_shapes import rows_depend
from onnxq.observe import require_one
from onnxq.options import ImageOptions, Options
from onnxq.options.one_value import check_bits, check_int, plain
from onnxq.prepare import Prepared, Source
from onnxq.quantize import calibrate
from onnxq.spec import Scheme
from onnxq.survey import Record, local_noise, make_probe, runs_needed, survey

__all__ = ["sensitivity"]

_ROLES: tuple[Role, ...] = ("weights", "activations")


def sensitivity(
    model: Source,
    data: Any = None,
    *,
    backend: str = "onnxruntime",
    bits: int | Sequence[int] = (4, 8),
    statistics: Statistics | str | os.PathLike[str] | None = None,
    samples: int = 4,
    runs: int = 512,
    plot: str | os.PathLike[str] | None = None,
    options: Options | None = None,
    image: ImageOptions | None = None,
    reporter: Reporter | None = None,
) -> Sensitivity:
    """Measure what the weights of each layer, and each activation, do to the outputs when they alone are quantized.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        data: calibration data, see :func:`onnxq.calibration.data.open_data`; not needed with ``statistics``.
        backend: name of the target.
        bits: the widths to measure, 2 to 16; or a single one.
        statistics: what :func:`onnxq.calibrate` gave, or its file.
        samples: at most so many of the samples that the statistics kept are run.
        runs: largest number of measurements, each a model loaded and run on the samples. Where there are more layers,
            groups of neighbours are measured first and the worst of them split.
        plot: where to write a picture, SVG.
        options: exclusions, placement, ranges and so on; their bits decide nothing here.
        image: how to read pictures, where the data is a folder of them.
        reporter: shows progress.

    Raises:
        OnnxqError: anything that goes wrong, see :mod:`onnxq.errors`.
    """
    options, reporter = Options.of(options), reporter or Silent()
    widths = _widths(bits)
    check_int("samples", samples, 1)
    check_int("runs", runs, 1)
    target = backend_named(backend)
    asked = replace(options, weight_bits=None, act_bits=None)
    if target.asymmetric_weights.intersection(widths):  # the widths tried have zero points, if not that of the target
        asked = replace(asked, weight_symmetric=None)
    target.require(asked)
    _require_grids(target, widths)
    _require_picture(plot)
    if plot is not None:
        spare(plot, model=model, data=data, statistics=statistics)
    require_one(data, statistics, options, image)
    if isinstance(statistics, (str, os.PathLike)):
        statistics = Statistics.load(statistics)
    if statistics is None:
        statistics = calibrate(model, data, options=options, image=image, reporter=reporter)
    prepared = Prepared(model, options)
    statistics.require_of(model_digest(prepared.model))
    if not statistics.kept:
        raise StatisticsError(
            "the statistics hold no samples to run", hint="Calibrate again with more memory or smaller samples"
        )
    start = time.perf_counter()
    whole, statistics = as_compared(prepared.base(target), statistics)
    probe = make_probe(whole, target, options, statistics, spread(statistics.kept, samples))
    filled = {value.name for value in filled_values(whole)}
    warnings = statistics.warnings(set(probe.plan.observed()) - filled)
    made = _measured(probe, widths, runs, reporter)
    already = came_quantized(probe.plan)
    warnings += [already] if already else []
    made = replace(made, warnings=(*warnings, *made.warnings), seconds=time.perf_counter() - start)
    if plot is not None:
        with made_folder(Path(plot)):
            write_text(plot, made.to_svg())
    return made


def _require_grids(target: Backend, widths: tuple[int, ...]) -> None:
    """Refuse widths that a grid of uneven steps does not have.

    Raises:
        OptionError: the first of them.
    """
    without = set(widths) - target.weight_bits
    if target.weight.scheme is not Scheme.UNIFORM and without:
        what = f"a {target.weight.scheme.value} grid has no {min(without)} bits"
        raise OptionError(
            what, where="bits", hint=f"{target.name} has: {', '.join(map(str, sorted(target.weight_bits)))}"
        )


def _measured(probe: Probe, widths: tuple[int, ...], runs: int, reporter: Reporter) -> Sensitivity:
    """Every part alone at every width, then all parts of a role together.

    Args:
        probe: quantizes parts of the model and runs it.
        widths: in bits.
        runs: largest number of measurements of single parts, shared out by the number of parts of each role.
        reporter: shows progress.
    """
    parts = parts_of(probe.model, probe.plan)
    by_role = {role: [part for part in parts if part.role == role] for role in _ROLES}
    share = {role: runs * len(found) // max(len(parts), 1) for role, found in by_role.items()}
    totals = len(widths) * sum(bool(found) for found in by_role.values())
    needed = totals + sum(runs_needed(len(by_role[role]), len(widths), share[role]) for role in _ROLES)
    records: list[Record] = []
    together: dict[str, dict[int, float]] = {}
    added: dict[str, dict[int, float]] = {}
    with reporter.phase("sensitivity", total=needed, unit="runs") as advance:
        done = 0
        for role, found in by_role.items():
            before = done

            def step(count: int, before: int = before) -> None:
                nonlocal done
                done = before + count
                advance(done)

            records += survey(probe, found, widths, share[role], step)
            if found:
                together[role], added[role] = {}, {}
            for width in widths if found else ():
                measured = probe.noise([Setting(part, width) for part in found])
                done += 1
                advance(done)
                together[role][width] = sqnr_of(max(measured.values()))
                added[role][width] = sqnr_of(_added(records, role, width))
        local = local_noise(probe, widths) if by_role["weights"] else {}
    return Sensitivity(
        backend=probe.plan.backend,
        bits=widths,
        rows=tuple(_row(record, local) for record in records),
        together=together,
        added=added,
        samples=len(probe.samples),
        runs=done,
        seconds=0.0,
        warnings=(rows_depend(probe.reshaped),) if probe.reshaped else (),
    )


def _require_picture(plot: str | os.PathLike[str] | None) -> None:
    """Refuse a place that no picture can be written to, before any work.

    Raises:
        OutputError: it is a folder or can lie in none, does not end in ``.svg``, or cannot be written.
    """
    if plot is None:
        return
    if not os.path.isdir(plot) and Path(plot).suffix.lower() != ".svg":
        raise OutputError("the picture is SVG", where=f"'{plot}'", hint="Give a file that ends in .svg")
    require_file(plot, "Give the path of the .svg file to write")
    if os.path.exists(plot) and not os.access(plot, os.W_OK):
        raise OutputError("cannot be written: Permission denied", where=f"'{plot}'", hint="Give another file")


def _widths(bits: int | Sequence[int]) -> tuple[int, ...]:
    given = tuple(dict.fromkeys(map(plain, bits if isinstance(bits, Iterable) else (bits,))))
    if not given:
        raise OptionError("no width was given", where="bits")
    for width in given:
        check_bits("bits", width)
    return tuple(sorted(given))


def _row(record: Record, local: Mapping[str, Mapping[int, float]]) -> SensitivityRow:
    parts = record.parts
    nodes = tuple(dict.fromkeys(name for part in parts for name in part.nodes))
    ops = {name: op for part in parts for name, op in zip(part.nodes, part.ops, strict=True)}
    own = local.get(nodes[0], {}) if len(nodes) == 1 and parts[0].role == "weights" else {}
    return SensitivityRow(
        role=parts[0].role,
        nodes=nodes,
        ops=tuple(ops[name] for name in nodes),
        tensors=tuple(dict.fromkeys(name for part in parts for name in part.tensors)),
        members=len(parts),
        parameters=sum(part.elements for part in parts),
        sqnr={bits: sqnr_of(record.worst(bits)) for bits in record.noise},
        outputs={bits: {n: sqnr_of(v) for n, v in noise.items()} for bits, noise in record.noise.items()},
        local={bits: sqnr_of(noise) for bits, noise in own.items()},
    )


def _added(records: Sequence[Record], role: Role, bits: int) -> float:
    """Noise of all records of a role at the output where it is largest."""
    total: dict[str, float] = {}
    for record in records:
        if record.parts[0].role == role:
            for name, noise in record.noise[bits].items():
                total[name] = total.get(name, 0.0) + noise
    return max(total.values())
