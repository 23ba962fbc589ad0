"""Models on which quantizers are known to fail, by group: the tests and ``tools/cases.py`` share them."""

from tests.cases import g01, g02, g03, g04, g05, g06, g07, g07_recurrent, g08, g09, g10, g11, g12, g13, g14, g15, g16
from tests.cases.case import CASES, Case, Given, Way

__all__ = [
    "CASES",
    "Case",
    "Given",
    "Way",
    "g01",
    "g02",
    "g03",
    "g04",
    "g05",
    "g06",
    "g07",
    "g07_recurrent",
    "g08",
    "g09",
    "g10",
    "g11",
    "g12",
    "g13",
    "g14",
    "g15",
    "g16",
]
