"""Tasks on several processes: fresh ones (spawn), one pipe each, nothing left behind however this process ends.

multiprocessing.Pool and ProcessPoolExecutor leave workers waiting for ever where their parent is killed; here a worker
sees its pipe close, and looks for its parent whenever it tells of progress.
"""

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from bertsmith.errors import BertsmithError, CorpusError

Tell = Callable[[int], None]  # told how many bytes have been read since last time


def run_tasks(
    function: Callable[[Any, Any, Tell], Any], tasks: Sequence[Any], *, shared: Any, workers: int, tell: Tell
) -> Iterator[tuple[int, Any]]:
    """(index, function(task, shared, tell)) of every task, in the order in which they end.

    One worker is this process. With several, `function` is a module's function, and `shared`, tasks and results pickle.
    What goes wrong in a worker is raised here: errors of the input and of the machine as they are, a bug of ours as a
    RuntimeError with the worker's traceback.
    """
    if workers == 1 or len(tasks) <= 1:
        for index, task in enumerate(tasks):
            yield index, function(task, shared, tell)
        return
    context = multiprocessing.get_context("spawn")  # the tokenizers library does not survive a fork
    pipes: dict[Any, BaseProcess] = {}
    left = iter(enumerate(tasks))
    try:
        for index, task in (next(left) for _ in range(min(workers, len(tasks)))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, function, shared, os.getpid()), daemon=True)
            with _interrupts_held_back():
                process.start()
            theirs.close()
            pipes[ours] = process
            _send(ours, process, (index, task))
        while pipes:
            for pipe in _ready(pipes):
                kind, *content = _received(pipe, pipes)
                if kind == "told":
                    tell(content[0])
                elif kind == "failed":
                    raise _rebuilt(*content)
                elif kind == "raised":
                    raise content[0]
                else:
                    yield content[0], content[1]
                    following = next(left, None)
                    _send(pipe, pipes[pipe], following)
                    if following is None:
                        pipes.pop(pipe).join()
    finally:
        for left_over in pipes.values():
            left_over.terminate()
        for left_over in pipes.values():
            left_over.join()


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A process started inside never sees SIGINT; Ctrl-C reaches all of a terminal, and the parent ends its own.

    It inherits the blocked signal, so there is no moment, not even while its interpreter starts, in which Ctrl-C would
    print a traceback. This process hears of one that came meanwhile at the end.
    """
    resource_tracker.ensure_running()  # else the start below would start it, and lift the block on its way
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ready(pipes: dict[Any, BaseProcess]) -> list[Any]:
    return list(wait(list(pipes)))


def _received(pipe: Connection, pipes: dict[Any, BaseProcess]) -> tuple[Any, ...]:
    try:
        return pipe.recv()
    except (EOFError, ConnectionError) as error:
        raise _ended(pipes[pipe]) from error


def _send(pipe: Connection, process: BaseProcess, what: Any) -> None:
    try:
        pipe.send(what)
    except ConnectionError as error:  # BrokenPipeError would pass for a reader of our results that left
        raise _ended(process) from error


def _ended(process: BaseProcess) -> CorpusError:
    process.join(timeout=5)
    return CorpusError(
        f"a worker process ended unexpectedly (exit code {process.exitcode}; -9 often means that memory ran out); "
        "run the same command again, with fewer workers if need be"
    )


def _rebuilt(kind: type[BertsmithError], text: str) -> BertsmithError:
    error = kind.__new__(kind)  # some of them do not take one text, so __init__ is not called
    error.args = (text,)
    return error


def _work(pipe: Connection, function: Callable[[Any, Any, Tell], Any], shared: Any, parent: int) -> None:
    def tell(amount: int) -> None:
        if os.getppid() != parent:
            os._exit(1)
        pipe.send(("told", amount))

    try:
        while (given := pipe.recv()) is not None:
            index, task = given
            try:
                result = function(task, shared, tell)
            except BertsmithError as error:
                pipe.send(("failed", type(error), str(error)))
                return
            except (OSError, MemoryError) as error:
                pipe.send(("raised", error))
                return
            except Exception:  # noqa: BLE001 - nothing is swallowed: the parent raises it with these lines
                pipe.send(("raised", RuntimeError(f"in a worker process:\n{traceback.format_exc()}")))
                return
            pipe.send(("done", index, result))
    except (EOFError, ConnectionError):
        return  # the parent is gone
