"""``crashes``: turns an error that vLLM raises in the driver into a violation that names its place."""

from collections.abc import Iterator
from contextlib import contextmanager

from kv_sim.guard import HistoryEnds
from kv_sim.violation import Invariant, Referee, TestbedError, Violation


class _Nothing(Exception):  # noqa: N818 - a stand-in, never raised
    """Stands for a class of errors that can't occur."""


@contextmanager
def crashes(
    referee: Referee, what: str, *, but: type[Exception] = _Nothing, raises: type[Violation] = Violation
) -> Iterator[None]:
    """A context in which any error is a violation, since the history is legal. ``but`` is let through."""
    try:
        yield
    except (Violation, HistoryEnds, TestbedError, but):
        raise
    except (Exception, SystemExit) as error:
        message = f"vLLM, {what}: {type(error).__name__}: {error} ({_innermost(error)})"
        if Invariant.NO_CRASH in referee.switched_off:
            raise HistoryEnds(message) from error
        raise raises(Invariant.NO_CRASH, message) from error


def _innermost(error: BaseException) -> str:
    trace = error.__traceback__
    assert trace is not None, "an error that was raised has a traceback"
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} in {code.co_qualname}"
