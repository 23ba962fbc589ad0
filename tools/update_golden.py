"""Write the golden plan texts of ``tests/golden`` anew; read the difference before you commit it.

python tools/update_golden.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.test_planner import CASES, GOLDEN, text_of


def main() -> None:
    """Write a file for each case."""
    for name in CASES:
        path = GOLDEN / f"{name}.txt"
        new = text_of(name)
        if not path.exists() or path.read_text() != new:
            path.write_text(new)
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
