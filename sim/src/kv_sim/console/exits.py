"""``os._exit``, called by a connector that the engine is calling, is raised there as an error, as ``sys.exit`` is.

Called anywhere else, such as in a thread of the connector's, it ends the command, after its stack was printed.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import currentframe
from traceback import print_stack
from typing import Any

from kv_sim.calls import is_within_a_call


@contextmanager
def exits_are_raised() -> Iterator[None]:
    """Replace ``os._exit`` while this lasts; in a process that is forked meanwhile it does what it always did."""
    end, process = os._exit, os.getpid()

    def told(code: Any) -> None:
        frame = currentframe()
        if os.getpid() == process:
            if is_within_a_call(frame):
                raise SystemExit(f"os._exit({code})")
            print(f"note: a connector or a library called os._exit({code}):", file=sys.stderr)
            print_stack(frame, file=sys.stderr)
            sys.stderr.flush()
        end(code)

    os._exit = told  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = end
