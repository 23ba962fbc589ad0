"""The evaluation of a zoo's task with the float model run beside the one that is evaluated.

    python -m benchmarking.beside_float ZOO NAME MODEL FLOAT

Prints the metrics of `zoo.py eval NAME MODEL` with ``sqnr_db``, the SQNR of the worst float output over all runs of the
evaluation, and ``runs``, their number. Each run of the float model gets the inputs of the other one: states of a
recurrent model too.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import onnxruntime as ort

from benchmarking.power import Power


def main() -> None:
    """Run it."""
    zoo, name, model, reference = sys.argv[1:]
    plain = ort.InferenceSession
    exact = plain(reference, providers=["CPUExecutionProvider"])
    names = [output.name for output in exact.get_outputs()]
    power = Power()

    class Beside(plain):  # type: ignore[misc,valid-type]
        """A session whose every run is compared with the float model's."""

        def run(self, outputs: Any, feeds: Any, *options: Any) -> Any:
            got = super().run(names, feeds, *options)
            power.add(names, exact.run(names, feeds), got)
            return got if outputs is None else [got[names.index(output)] for output in outputs]

    ort.InferenceSession = Beside
    sys.argv = [str(Path(zoo) / "zoo.py"), "eval", name, model]
    runpy.run_path(sys.argv[0], run_name="__main__")
    print(json.dumps({"sqnr_db": power.worst(), "runs": power.runs}))


if __name__ == "__main__":
    main()
