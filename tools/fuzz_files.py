"""Damaged files through onnxq: models, data, statistics, tables of targets, configurations, states of training.

    python tools/fuzz_files.py 0 500                       # these seeds for every kind of file
    python tools/fuzz_files.py 0 5000 --kind model --kind statistics

What comes of each is success or an error of ``onnxq.errors``; anything else is printed with its kind and seed. The
exit code is 1 where there is any.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.fuzzing.bytes import KINDS, prepare  # noqa: E402


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description="Read damaged files with onnxq.")
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("count", type=int, help="how many seeds")
    parser.add_argument("--kind", action="append", choices=KINDS, help="default all")
    args = parser.parse_args()
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = prepare(Path(folder))
        for kind in args.kind or KINDS:
            start, counted = time.perf_counter(), Counter[str]()
            for seed in range(args.first, args.first + args.count):
                said = bench.read(kind, seed)
                counted[said.partition(":")[0]] += 1
                if said.startswith("FAULT"):
                    print(f"{kind}, seed {seed}: {said}", flush=True)
            faults += counted["FAULT"]
            print(f"{kind:20} {dict(counted)} in {time.perf_counter() - start:.0f} s", flush=True)
        bench.stop()
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
