"""Which of the supported versions of a library is installed: some tests are of what only newer ones have."""

from __future__ import annotations

from importlib import metadata

import pytest

__all__ = ["has", "needs"]


def needs(package: str, version: str) -> pytest.MarkDecorator:
    """A mark for what only a version of a package and later ones have.

    Args:
        package: as pip names it.
        version: numbers with dots between them.
    """
    there = metadata.version(package)
    return pytest.mark.skipif(not has(package, version), reason=f"{package} {version} has it, {there} not")


def has(package: str, version: str) -> bool:
    """Whether a version of a package or a later one is there; both as for :func:`needs`."""
    return _numbers(metadata.version(package)) >= _numbers(version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
