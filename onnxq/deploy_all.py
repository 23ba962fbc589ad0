"""A model that is quantized already, written for several targets, or for none of them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from onnxq.backend_choice import backend_named
from onnxq.deploy import deploy
from onnxq.locations import artifact_path, require_files, require_output, require_several, spare
from onnxq.options import Options
from onnxq.prepare import Source
from onnxq.quantized import Quantized
from onnxq.several import for_each_target, for_those_that_take_it, names_of, require_all

__all__ = ["deploy_all"]


def deploy_all(
    model: Source,
    *,
    backends: Sequence[str],
    output: str | os.PathLike[str] | None = None,
    options: Options | None = None,
) -> dict[str, Quantized]:
    """Write a model that is quantized already for several targets, see :func:`onnxq.deploy.deploy`.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        backends: names of the targets, or a single one.
        output: a folder, made where missing, for files named ``<model>_<backend>``. Nothing is written without it.
        options: for all targets; a format that one of them has not is an error.

    Returns:
        The quantized models by target, in the order given.

    Raises:
        TargetsError: some targets refuse the model or its quantizers; the others are written.
        BackendError: the model carries no quantizers, or all targets refuse them.
        OutputError: among others, a file cannot be written; those of other targets may be there then.
        OnnxqError: anything else that goes wrong; nothing is written then.
    """
    options, names = Options.of(options), names_of(backends)
    require_several(output)
    require_output(output, several=True)
    paths = {} if output is None else {name: artifact_path(output, model, name, several=True) for name in names}

    forms = for_each_target(names, lambda name: backend_named(name).format_named(options.format))
    for name, path in paths.items():
        beside = forms[name].sidecars(path)
        require_files([path, *beside])
        spare(beside=beside, model=model)
    made, refused = for_those_that_take_it(names, lambda name: deploy(model, backend=name, options=options))
    made = {name: result.written(paths[name]) if name in paths else result for name, result in made.items()}
    require_all(made, refused, written=bool(paths))
    return made
