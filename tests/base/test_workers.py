"""Tasks on several processes: results, errors, and what a worker must not hear."""

import os
import signal
import threading
import time

import pytest

from bertsmith.base.workers import run_tasks
from bertsmith.errors import CorpusError


def blocked(task, shared, tell):
    tell(1)
    return task, signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def refuse(task, shared, tell):
    raise CorpusError(f"{shared} {task}")


@pytest.mark.parametrize("tasks", [[], ["a"], ["a", "b", "c"]])
def test_every_task_is_done_once(tasks):
    told = []
    found = dict(run_tasks(blocked, tasks, shared=None, workers=2, tell=told.append))
    assert [found[index][0] for index in range(len(tasks))] == tasks
    assert told == [1] * len(tasks)


def test_workers_never_hear_control_c_and_this_process_still_does():
    """A terminal sends it to all of them, perhaps before a worker's first line of Python."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert all(held for _, (_, held) in run_tasks(blocked, [0, 1], shared=None, workers=2, tell=lambda _: None))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def end_after_telling(task, shared, tell):
    threading.Timer(0.2, os._exit, [9]).start()  # after the result is sent, before the next task comes
    return task


def test_a_worker_that_dies_between_two_tasks_is_an_error_and_no_silent_end():
    found = run_tasks(end_after_telling, [0, 1, 2, 3], shared=None, workers=2, tell=lambda _: None)
    with pytest.raises(CorpusError, match="ended unexpectedly"):
        for _ in found:
            time.sleep(1)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_keeps_its_kind_and_words(workers):
    with pytest.raises(CorpusError, match="no a"):
        list(run_tasks(refuse, ["a", "a"], shared="no", workers=workers, tell=lambda _: None))


def stumble(task, shared, tell):
    raise {"bug": KeyError("no such thing"), "disk": OSError(28, "No space left on device", "a/file")}[task]


def test_a_bug_in_a_worker_is_no_error_of_the_input_and_shows_where():
    with pytest.raises(RuntimeError, match=r"(?s)in a worker process:.*in stumble.*no such thing"):
        list(run_tasks(stumble, ["bug", "bug"], shared=None, workers=2, tell=lambda _: None))


def test_a_full_disk_in_a_worker_stays_an_error_of_the_machine():
    with pytest.raises(OSError, match="No space left on device") as caught:
        list(run_tasks(stumble, ["disk", "disk"], shared=None, workers=2, tell=lambda _: None))
    assert (caught.value.errno, caught.value.filename) == (28, "a/file")
