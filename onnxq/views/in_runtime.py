"""How an artifact does in its runtime, against its simulation: outputs, speed, and layer by layer."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onnxq.console.terminal import Screen, decibels, pace, plural
from onnxq.views.parts import accuracy_text, heading, is_counted, labelled, of_kinds, worst_outputs

if TYPE_CHECKING:
    from onnxq.measuring.agreement import Agreement
    from onnxq.measuring.layerwise import LayerAgreement

__all__ = ["agreement"]

_MOST_LAYERS = 3
"""Layers that differ most, named unless all are asked for."""


def agreement(screen: Screen, found: Agreement, faults: Sequence[str], *, verbose: bool) -> None:
    """The summary of ``onnxq verify``; ``faults`` are those by the floors asked for."""
    heading(screen, str(found.artifact), found.runtime or "in no runtime of its own")
    kind = "quantizers in the graph" if found.format == "onnx" else f"format {found.format}, read back"
    held = f"{kind}: {plural(found.tensors, 'tensor')} with a scale"
    if found.format == "onnx" and not found.tensors:
        held = f"no {kind}"
    if found.in_both:
        held += f"; weights in blocks and ranges taken at run time: {found.in_both}"
    rows = [("artifact", held)]
    if found.integer or found.floating:  # not every runtime tells
        rows.append(("integer", f"{plural(len(found.integer), 'operator')}{_kinds(found.integer)}"))
        rows.append(("float", f"{plural(len(found.floating), 'operator')}{_kinds(found.floating)}"))
    texts = _output_texts(found, verbose)
    counted = [f"{name}: {accuracy_text(errors)}" for name, errors in found.outputs.items() if is_counted(errors)]
    if found.simulated:
        rows += [*labelled("SQNR", texts), *labelled("agreement", counted)]
    else:
        rows += labelled("agreement", [*texts, *counted])
        rows += labelled("against float", _lost(found))
    rows.append(("compared", found.compared))
    if found.speedup is not None:
        speed = pace(found.speedup, "the float model inside")
        rows.append(("speed", f"{speed}, one thread of this machine{found.timed and '; '}{found.timed}"))
    rows += labelled("layers", _layers(found.layers, verbose))
    rows += labelled("layers", [f"not compared: {found.layers_missing}"] if found.layers_missing else [])
    rows += labelled("remark", found.remarks)
    rows += labelled("fault", faults)
    rows += labelled("next", _to_find_out(found) if faults else [])
    if verbose:
        rows += [("integer", name) for name in found.integer] + [("float", name) for name in found.floating]
    screen.pairs(rows)


def _output_texts(found: Agreement, verbose: bool) -> list[str]:
    """How outputs that are no counts agree, of many some: see :func:`onnxq.views.parts.worst_outputs`."""
    scored = {name: errors for name, errors in found.outputs.items() if not is_counted(errors)}
    texts = []
    for name, errors in worst_outputs(scored, everything=verbose).items():
        steps = f", at most {found.lsb[name]:.2g} steps of its quantizer" if name in found.lsb else ""
        texts.append(f"{name}: {accuracy_text(errors)}{steps}")
    more = len(scored) - len(texts)
    return [*texts, f"{plural(more, 'more output')} (-v lists all)"] if more else texts


def _lost(found: Agreement) -> Iterator[str]:
    """What outputs lose in the runtime and in simulation, where the two differ visibly."""
    for name, loss in found.against_float.items():
        runtime, simulation = decibels(loss.runtime), decibels(loss.simulation)
        if runtime != simulation or found.outputs[name].sqnr < loss.simulation:
            yield f"{name}: {runtime}, in simulation {simulation}, of the float model inside"


def _to_find_out(found: Agreement) -> list[str]:
    """What shows more of a fault in a runtime."""
    path = shlex.quote(str(found.artifact))
    if found.may_be_split:
        command = f"onnxq verify {path} --backend {found.backend} --data DATA --layers"
        return [f"{command}   shows the layers that the runtime computes otherwise"]
    if found.layers and all(layer.steps <= found.steps for layer in found.layers):
        what = "each layer alone is right: the runtime computes some together, or in parts"
        return [f"{what}; quantize with --exclude NAME or other widths at layers that hurt, and verify again"]
    return []


def _layers(layers: Sequence[LayerAgreement], verbose: bool) -> Iterator[str]:
    """How the layers agree: all in a line, then those that differ most."""
    if not layers:
        return
    values = sum(layer.values for layer in layers)
    differing = sum(layer.differing for layer in layers)
    most = max(layer.steps for layer in layers)
    apart = (
        f"{differing:,} differ ({differing / values:.2%}), by {plural(most, 'step')} at most"
        if differing
        else "all equal"
    )
    yield f"{values:,} integers in {plural(len(layers), 'tensor')}, each layer from equal ones: {apart}"
    worst = sorted((layer for layer in layers if layer.differing), key=lambda layer: (-layer.steps, layer.sqnr))
    for layer in worst if verbose else worst[:_MOST_LAYERS]:
        share = f"{layer.differing / layer.values:.2%} differ, by {plural(layer.steps, 'step')} at most"
        yield f"{layer.tensor}: {decibels(layer.sqnr)}, {share}; {layer.layer}"


def _kinds(names: Sequence[str]) -> str:
    return of_kinds(name.split()[0] for name in names if name)
