"""Samples to judge a result by that was made without any."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import onnx_ir as ir

from onnxq.calibration.data import Samples, open_data
from onnxq.calibration.statistics import KeptSample
from onnxq.console.progress import Reporter
from onnxq.options import ImageOptions, Options
from onnxq.ort.inputs import inputs_of
from onnxq.ort.session import Session

__all__ = ["samples_to_judge"]

_MOST, _OF_SLOW = 64, 8
"""Samples run, and of a model that is slow."""
_SECONDS = 0.5
"""For running all of them through both models, above which a model is slow."""
_TRIED, _FAR = 4, 8
"""Samples run to find out, unless the first takes so many times the time that a quick model may."""


def samples_to_judge(
    model: ir.Model, data: Any, options: Options, image: ImageOptions | None, reporter: Reporter
) -> tuple[list[KeptSample], int | None]:
    """At most 64 samples, spread over all, with what the float model makes of them; 8 of a slow model.

    Args:
        model: the float model.
        data: see :func:`onnxq.calibration.data.open_data`; None: there are none. What can be read once only gives 8.
        options: ``samples``, providers and the library of custom operators.
        image: how pictures are read.
        reporter: shows progress.

    Returns:
        The samples, and how many the data has, None where nobody knows.
    """
    if data is None:
        return [], None
    opened = partial(open_data, data, inputs_of(model, defaults=True), image=image)
    session = Session(model, **options.session)
    most = min(options.samples or _MOST, _MOST)
    feeds = opened(samples=most)
    if most > _OF_SLOW and (not feeds.repeatable or _is_slow(session, feeds, most)):
        feeds = opened(samples=_OF_SLOW)
    kept = []
    with reporter.phase("run float", total=feeds.length) as advance:
        for position, feed in enumerate(feeds):
            kept.append(KeptSample(feeds.index_of(position), feed, session.run(feed)))
            advance(position + 1)
    return kept, feeds.total


def _is_slow(session: Session, feeds: Samples, samples: int) -> bool:
    """Whether so many samples would take long, by the quickest of the first few: others are often busy as well."""
    most = _SECONDS / (2 * samples)
    start = time.perf_counter()
    for _, feed in zip(range(_TRIED), feeds, strict=False):
        session.run(feed)
        seconds, start = time.perf_counter() - start, time.perf_counter()
        if seconds <= most or seconds > _FAR * most:
            return seconds > most
    return True
