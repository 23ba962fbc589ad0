"""What is said of the layers that a poor result is blamed on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onnxq.deciding import what_hurts
from onnxq.deciding.rescue import Blame


def test_a_layer_that_alone_leaves_enough_is_float_for_what_others_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """All together have to leave 18 dB; a reason that names 19 dB alone explains nothing."""
    found = [
        Blame(("ruins",), 10**-0.4, 1.0),
        Blame(("adds",), 10**-1.9, 0.1),
        Blame(("one", "two"), 10**-1.81, 0.1),
        Blame(("dear",), 10**-2.4, 10.0),
    ]
    monkeypatch.setattr(what_hurts, "blame_layers", lambda *_, **__: (found, 0.0))
    anything: Any = SimpleNamespace(reporter=None)
    assert what_hurts.to_rescue(anything, anything, ()) == {
        "ruins": "quantized alone it leaves 4 dB at the outputs",
        "adds": "quantized alone it leaves 19 dB at the outputs, too little beside what others lose",
        **dict.fromkeys(
            ("one", "two"),
            "quantized alone with the layers around it, it leaves 18 dB at the outputs, too little beside what others "
            "lose",
        ),
    }
