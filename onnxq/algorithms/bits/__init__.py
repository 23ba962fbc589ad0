"""Bits for every layer within a budget: what a choice costs, what noise it makes, and the best choice."""
