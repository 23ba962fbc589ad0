"""Blocks of a model learned one after the other: where they begin and end, their data, their learning."""
