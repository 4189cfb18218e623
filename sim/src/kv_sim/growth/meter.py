"""How much work calls are: the bytecodes that Python runs in them.

They are the same on every machine and under every load, unlike seconds. What runs within C isn't seen: copying a
list of a million items is one bytecode.
"""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from kv_api import KVConnectorBase_V1
from kv_api.contract import CONTRACT, HMA_CONTRACT, Kind, Side


class Meter:
    """Counts the work of a connector's scheduler side, from its construction on.

    ``work`` has the bytecodes of each method; a call that a connector makes of itself counts for the outer one.
    """

    def __init__(self, connector: KVConnectorBase_V1) -> None:
        self.work: Counter[str] = Counter()
        self._is_counting = False
        for member in (*CONTRACT, *HMA_CONTRACT):
            method = getattr(connector, member.name, None)
            if member.side in (Side.SCHEDULER, Side.BOTH) and member.kind is Kind.METHOD and method is not None:
                setattr(connector, member.name, self._counted(member.name, method))

    def take(self) -> Counter[str]:
        """The work since it was last taken."""
        work, self.work = self.work, Counter()
        return work

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_counting:
                return method(*args, **kwargs)
            return self._count(name, method, *args, **kwargs)

        return call

    def _count(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        count = 0

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal count
            frame.f_trace_opcodes = True
            count += event == "opcode"
            return trace

        before, collects = sys.gettrace(), gc.isenabled()
        gc.disable()  # what it finds may run code of its own
        self._is_counting = True
        sys._getframe().f_trace_opcodes = True  # Python 3.12 traces them only if somebody wanted them before
        sys.settrace(trace)
        try:
            return method(*args, **kwargs)
        finally:
            sys.settrace(before)
            self._is_counting = False
            self.work[name] += count
            if collects:
                gc.enable()
