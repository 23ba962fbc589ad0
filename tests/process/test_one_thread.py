"""BLAS on one thread, for runs that overlap."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from onnxq.process.one_thread import one_blas_thread


def threads() -> set[int]:
    assert np.dot(np.ones((2, 2)), np.ones((2, 2))).all()  # BLAS is loaded
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.mark.parametrize("first", [0, 1])
def test_runs_that_overlap_leave_the_number_of_threads_as_it_was(first: int) -> None:
    """Whichever of two ends first, as in two threads of one program."""
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        runs = [ExitStack(), ExitStack()]
        for run in runs:
            run.enter_context(one_blas_thread())
        assert threads() == {1}
        runs[first].close()
        assert threads() == {1}
        runs[1 - first].close()
        assert threads() == before


def test_it_is_restored_after_an_error() -> None:
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with pytest.raises(ValueError, match="wrong"), one_blas_thread():
            raise ValueError("wrong")
        assert threads() == before
