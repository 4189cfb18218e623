"""``os._exit`` within a call of a connector is an error in the middle of it, as ``sys.exit`` is.

Whoever calls it elsewhere, as in a thread of its own, ends the command, and the stack says where.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import currentframe
from traceback import print_stack
from typing import Any

from kv_sim.guard import is_within_a_call


@contextmanager
def exits_are_raised() -> Iterator[None]:
    """While it lasts. A process that is forked meanwhile ends as it always did."""
    end, process = os._exit, os.getpid()

    def told(code: Any) -> None:
        frame = currentframe()
        if os.getpid() == process:
            if is_within_a_call(frame):
                raise SystemExit(f"os._exit({code})")
            print(f"note: somebody called os._exit({code}):", file=sys.stderr)
            print_stack(frame, file=sys.stderr)
            sys.stderr.flush()
        end(code)

    os._exit = told  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = end
