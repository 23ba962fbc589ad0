"""The cheapest way to part a graph of capacities in two: a minimum cut, by way of a maximum flow."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence

__all__ = ["MinimumCut"]


class MinimumCut:
    """Dinic's maximum flow on integer capacities; the source side of the minimum cut is what remains reachable.

    Source: Dinic, Algorithm for solution of a problem of maximum flow in networks with power estimation, 1970.
    """

    def __init__(self) -> None:
        self._index: dict[Hashable, int] = {}
        self._edges: list[list[int]] = []  # per vertex: ids into the arrays below
        self._to: list[int] = []
        self._capacity: list[int] = []

    def _vertex(self, key: Hashable) -> int:
        if key not in self._index:
            self._index[key] = len(self._edges)
            self._edges.append([])
        return self._index[key]

    def edge(self, start: Hashable, end: Hashable, capacity: int) -> None:
        """Add an edge; what it costs to have ``start`` on the source's side and ``end`` on the sink's."""
        a, b = self._vertex(start), self._vertex(end)
        for at, to, room in ((a, b, capacity), (b, a, 0)):
            self._edges[at].append(len(self._to))
            self._to.append(to)
            self._capacity.append(room)

    def source_side(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """The vertices on the source's side of a cut of least cost: the fewest that there can be."""
        start, end = self._vertex(source), self._vertex(sink)
        while True:
            level = self._levels(start)
            if level[end] < 0:
                return {key for key, vertex in self._index.items() if level[vertex] >= 0}
            position = [0] * len(self._edges)
            while self._augment(start, end, level, position):
                pass

    def _levels(self, start: int) -> list[int]:
        level = [-1] * len(self._edges)
        level[start] = 0
        queue = deque([start])
        while queue:
            vertex = queue.popleft()
            for e in self._edges[vertex]:
                if self._capacity[e] and level[self._to[e]] < 0:
                    level[self._to[e]] = level[vertex] + 1
                    queue.append(self._to[e])
        return level

    def _augment(self, start: int, end: int, level: Sequence[int], position: list[int]) -> bool:
        """One augmenting path along increasing levels, without recursion."""
        path: list[int] = []
        vertex = start
        while vertex != end:
            edges = self._edges[vertex]
            while position[vertex] < len(edges):
                e = edges[position[vertex]]
                if self._capacity[e] and level[self._to[e]] == level[vertex] + 1:
                    break
                position[vertex] += 1
            else:
                if not path:
                    return False
                e = path.pop()
                vertex = self._to[e ^ 1]
                position[vertex] += 1
                continue
            path.append(e)
            vertex = self._to[e]
        room = min(self._capacity[e] for e in path)
        for e in path:
            self._capacity[e] -= room
            self._capacity[e ^ 1] += room
        return True
