"""Group 16: files, external data, and a file system that does not play along."""

from __future__ import annotations

import onnx

from tests.cases.case import Given, case
from tests.models import build, images, normal

FEEDS = images(1, 16, 12, 12, samples=3)


def model() -> onnx.ModelProto:
    """With weights of 18 and 36 KB."""
    return build(
        """(float[1, 16, 12, 12] x) => (float[1, 32, 8, 8] y) {
            [c1] a = Conv (x, w, b)
            [r] r = Relu (a)
            [c2] y = Conv (r, v)
        }""",
        w=normal(32, 16, 3, 3),
        b=normal(32, seed=1),
        v=normal(32, 32, 3, 3, seed=2),
    )


@case("G16")
def modelproto_input_not_mutated() -> Given:
    """A model in memory: unchanged afterwards."""
    return Given(model(), FEEDS)


@case("G16", way="file")
def file_in() -> Given:
    """A model file: unchanged afterwards, nothing beside it."""
    return Given(model(), FEEDS)


@case("G16", way="overwrite")
def output_equals_input() -> Given:
    """The result replaces the model."""
    return Given(model(), FEEDS)


@case("G16", way="external")
def external_data_in() -> Given:
    """Weights in a second file: the result stands alone or has its own."""
    return Given(model(), FEEDS)


@case("G16", way="external overwrite")
def external_data_overwritten() -> Given:
    """Weights in a second file, and the result replaces the model."""
    return Given(model(), FEEDS)


@case("G16", way="bare external")
def external_entry_without_offset_and_length() -> Given:
    """Weights in files of their own, named without offset and length."""
    return Given(model(), FEEDS)


@case("G16", way="short external", refuse=r"\b[wv]\b|weights\.bin")
def external_data_too_short() -> Given:
    """The file of the weights ends too early: an error that names it."""
    return Given(model(), FEEDS)


@case("G16", way="missing external", refuse=r"weights\.bin")
def external_data_missing() -> Given:
    """The file of the weights is missing: an error that names it."""
    return Given(model(), FEEDS)


@case("G16", way="link")
def symlinked_model() -> Given:
    """The model is a link: read, and not replaced."""
    return Given(model(), FEEDS)


@case("G16", way="full disk", refuse=r"q\.onnx")
def disk_full_half_way() -> Given:
    """The disk is full before the result is written: an error that names the file, and no part of it."""
    return Given(model(), FEEDS)
