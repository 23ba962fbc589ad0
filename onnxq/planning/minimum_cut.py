"""The cheapest way to part a graph of capacities in two: a minimum cut, by way of a maximum flow."""

from __future__ import annotations

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
        self._short_cuts(start, end)
        while True:
            level = self._levels(start, end)
            if level[end] < 0:
                return {key for key, vertex in self._index.items() if level[vertex] >= 0}
            self._augment(start, end, level)

    def _short_cuts(self, start: int, end: int) -> None:
        """Augment along the paths of two edges: most vertices have one of each, a cost on either side."""
        to, capacity = self._to, self._capacity
        for first in self._edges[start]:
            for second in self._edges[to[first]]:
                if to[second] == end and (room := min(capacity[first], capacity[second])):
                    for e in (first, second):
                        capacity[e] -= room
                        capacity[e ^ 1] += room

    def _levels(self, start: int, end: int) -> list[int]:
        """Edges that each vertex is away from the start, as far as the end is, if it can be reached; -1: farther."""
        edges, to, capacity = self._edges, self._to, self._capacity
        level = [-1] * len(edges)
        level[start] = depth = 0
        reached = [start]
        while reached and level[end] < 0:
            depth += 1
            ahead: list[int] = []
            for vertex in reached:
                for e in edges[vertex]:
                    if capacity[e] and level[to[e]] < 0:
                        level[to[e]] = depth
                        ahead.append(to[e])
            reached = ahead
        return level

    def _augment(self, start: int, end: int, level: Sequence[int]) -> None:
        """Augment along increasing levels until no such path is left, without recursion."""
        edges, to, capacity = self._edges, self._to, self._capacity
        position = [0] * len(edges)
        path: list[int] = []
        vertex = start
        while True:
            if vertex == end:
                vertex = to[self._fill(path) ^ 1]
            here, at, depth = edges[vertex], position[vertex], level[vertex] + 1
            while at < len(here) and not (capacity[here[at]] and level[to[here[at]]] == depth):
                at += 1
            position[vertex] = at
            if at < len(here):
                path.append(here[at])
                vertex = to[here[at]]
            elif path:
                vertex = to[path.pop() ^ 1]
                position[vertex] += 1
            else:
                return

    def _fill(self, path: list[int]) -> int:
        """Augment along a path, and leave of it what is in front of the first edge that is full now, which is given."""
        capacity = self._capacity
        room = min([capacity[e] for e in path])
        for e in path:
            capacity[e] -= room
            capacity[e ^ 1] += room
        first = next(at for at, e in enumerate(path) if not capacity[e])
        full = path[first]
        del path[first:]
        return full
