from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from onnxq.planning.minimum_cut import MinimumCut

INNER = 4
ENDS = st.integers(0, INNER + 1)
EDGES = st.lists(st.tuples(ENDS, ENDS, st.integers(0, 5)).filter(lambda edge: edge[0] != edge[1]), max_size=16)


@given(EDGES)
def test_source_side_is_the_smallest_of_the_cheapest(edges: list[tuple[int, int, int]]) -> None:
    source, sink = INNER, INNER + 1
    cut = MinimumCut()
    for edge in edges:
        cut.edge(*edge)

    def cost(side: set[int]) -> int:
        return sum(capacity for start, end, capacity in edges if start in side and end not in side)

    sides = [{v for v in range(INNER) if chosen[v]} | {source} for chosen in product((0, 1), repeat=INNER)]
    least = min(map(cost, sides))
    assert cut.source_side(source, sink) == set.intersection(*(side for side in sides if cost(side) == least))
