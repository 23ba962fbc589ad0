"""Passes on the graph, a file each: what is rewritten, folded or fused, with every output the same."""
