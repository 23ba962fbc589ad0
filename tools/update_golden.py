"""Write the golden plan texts of ``tests/golden`` anew; read the difference before you commit it.

python tools/update_golden.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.planning.test_planner import CASES, GOLDEN, text_of
from tests.targets import GRAPHS, TARGETS, plan_text


def main() -> None:
    """Write a file for each case that changed."""
    wanted = {GOLDEN / f"{name}.txt": text_of(name) for name in CASES}
    wanted |= {GOLDEN / "targets" / t / f"{g}.txt": plan_text(t, g) for t in TARGETS for g in GRAPHS}
    for path, new in wanted.items():
        if not path.exists() or path.read_text() != new:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new)
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
