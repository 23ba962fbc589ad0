"""An artifact in its real runtime: the whole of it, beside the float model, and layer by layer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.console.progress import Reporter
from onnxq.errors import BackendError, OptionError, OutputError, VerificationError
from onnxq.graph.files.save import save
from onnxq.measuring.layerwise import LayerAgreement, compare_layers
from onnxq.runtimes.child import examine
from onnxq.runtimes.runtime import Examination, Runtime

__all__ = ["InRuntime", "require_one_shape"]


@dataclass(frozen=True, slots=True)
class InRuntime:
    """A runtime and the samples that it is asked for.

    Attributes:
        runtime: which one.
        feeds: samples.
        timeout: seconds.
        reporter: shows progress.
        runtime_file: see :class:`onnxq.backend.Backend`.
    """

    runtime: Runtime
    feeds: list[dict[str, NDArray[Any]]]
    timeout: float
    reporter: Reporter
    runtime_file: Callable[[ir.Model, Path], object] | None = None

    def whole(self, path: Path, *, shown: ir.Model | None = None, beside: ir.Model | None = None) -> Examination:
        """The whole model in the runtime.

        Args:
            path: of the artifact.
            shown: a copy of it with more outputs, to be run in its place where the runtime computes.
            beside: the float model, to time the artifact beside, where the runtime is one that is timed.

        Raises:
            VerificationError: see :func:`onnxq.runtimes.child.examine`.
        """
        runtime, count = self.runtime, len(self.feeds)
        computes = runtime.runs and count > 0
        done, total, unit = ("load and run", count, "samples") if computes else ("load", 1, "models")
        with (
            tempfile.TemporaryDirectory(prefix="onnxq-", ignore_cleanup_errors=True) as folder,
            self.reporter.phase(f"{done} in {runtime.title}", total=total, unit=unit) as tell,
        ):
            if shown is not None and runtime.runs:
                path = self._saved(shown, Path(folder) / path.name)
            other, untimed = None, list[str]()
            if beside is not None and runtime.timed and count:
                try:
                    Path(folder, "float").mkdir()
                    other = self._saved(beside, Path(folder, "float", "model.onnx"))
                except (BackendError, OutputError) as error:  # there is no room for it, or it cannot be said
                    untimed.append(f"not timed: {error}")
            advance = tell if computes else lambda done: tell(0)
            seen = examine(runtime, path, self.feeds, beside=other, timeout=self.timeout, advance=advance)
            tell(total)
        told = [seen.timed, self._size_timed()] if seen.times is not None else [seen.timed]
        return replace(seen, remarks=(*seen.remarks, *untimed), timed="; ".join(filter(None, told)))

    def _size_timed(self) -> str:
        """Of which size the sample is that times are taken on, the first, where samples differ in it."""
        first, *others = self.feeds
        for name, x in first.items():
            if any(other[name].shape != x.shape for other in others):
                return f"on a sample with {name} {'x'.join(map(str, x.shape))}, where others have other sizes"
        return ""

    def by_layer(self, model: ir.Model) -> tuple[tuple[LayerAgreement, ...], str | None]:
        """Every layer from equal integers, or none and why there are none."""
        found: tuple[LayerAgreement, ...] = ()
        missing = None
        with self.reporter.phase(f"layer by layer in {self.runtime.title}", total=1, unit="models") as advance:
            try:
                found = compare_layers(model, self.runtime, self.feeds, timeout=self.timeout, save=self._saved)
            except (BackendError, VerificationError) as error:
                missing = error.what
            advance(1)
        return found, missing

    def _saved(self, model: ir.Model, path: Path) -> Path:
        """A model in a file, with the one that the runtime takes in its place, beside it or there."""
        (saved, *_) = save(model, path)
        if self.runtime_file is not None:
            self.runtime_file(model, path)
        return saved


def require_one_shape(runtime: Runtime, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> None:
    """Refuse samples of several sizes before minutes of compiling.

    Raises:
        OptionError: they differ.
    """
    for feed in feeds[1:]:
        for name, array in feed.items():
            if array.shape != (first := feeds[0][name].shape):
                sizes = " and ".join("x".join(map(str, shape)) for shape in (first, array.shape))
                what = f"{runtime.title} compiles for one size, and samples of input {name!r} have {sizes}"
                raise OptionError(what, where="data", hint="Give samples of one size, or take one (--samples 1)")
