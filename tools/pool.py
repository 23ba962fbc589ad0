"""Processes that answer one question after another, and are started again after a crash or a hang."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.verdict import Verdict

Job = TypeVar("Job")
Answer = TypeVar("Answer")
READY = "ready"
"""What a process may send before its answer: what happens from now on is for the answer to tell."""


class Worker:
    """A process that answers questions.

    Args:
        life: what runs there, as :func:`questions` is read and each answered.
        most: questions after which a new process is started, so that what one leaves behind stays bounded.
    """

    def __init__(self, life: Callable[[Connection], None], most: int) -> None:
        self.life, self.most = life, most
        self.context = multiprocessing.get_context("spawn")
        self.process: Any = None
        self.connection: Any = None
        self.jobs = 0

    def ask(self, *question: Any, seconds: float) -> Any:
        """The answer; a crash and a hang are faults, after which a new process takes over."""
        if self.process is None or self.jobs >= self.most:
            self.start()
        self.jobs += 1
        ready = False
        try:
            self.connection.send(question)
            end = monotonic() + seconds
            while self.connection.poll(max(end - monotonic(), 0)):
                answer = self.connection.recv()
                if answer != READY:
                    return answer
                ready = True
            self.stop()
            return Verdict("FAULT", f"no end after {seconds:g} s")
        except (EOFError, OSError):
            self.process.join(10)
            code, first = self.process.exitcode, self.jobs == 1
            self.stop()
        return self.died(code, question, seconds, ready=ready, first=first)

    def died(self, code: int | None, question: tuple[Any, ...], seconds: float, *, ready: bool, first: bool) -> Any:
        """What a crash comes to, at the first question or a later one, before :data:`READY` came or after."""
        return Verdict("FAULT", f"the process died with exit code {code}")

    def start(self) -> None:
        """A new process."""
        self.stop()
        self.connection, other = self.context.Pipe()
        self.process, self.jobs = self.context.Process(target=self.life, args=(other,), daemon=True), 0
        self.process.start()
        other.close()

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
        self.process = None


def questions(connection: Connection) -> Iterator[Any]:
    """What a worker is asked, until it is asked no more; what native libraries print is not shown."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with suppress(EOFError):
        while True:
            yield connection.recv()


def answers(
    jobs: Sequence[Job],
    workers: int,
    new: Callable[[], Worker],
    answer: Callable[[Worker, Job], Answer],
    tell: Callable[[Job, Answer], None],
) -> list[Answer]:
    """The answers, in the order of the jobs.

    Args:
        jobs: what to ask about.
        workers: processes at a time.
        new: makes a worker.
        answer: asks it about a job.
        tell: is told each answer as it comes, one at a time.
    """
    waiting = iter(enumerate(jobs))
    found: dict[int, Answer] = {}
    lock = Lock()

    def work(worker: Worker) -> None:
        for position, job in waiting:
            made = answer(worker, job)
            with lock:
                found[position] = made
                tell(job, made)
        worker.stop()

    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(work, [new() for _ in range(workers)]))
    return [found[position] for position in sorted(found)]
