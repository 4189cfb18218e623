"""How much work a call is, by a count that no other load on the machine changes."""

import gc
import sys


def work_of(call):
    """The bytecodes that Python runs for a call. What it does within C, such as to copy a list, isn't seen."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # whatever it finds may run code of its own
    sys._getframe().f_trace_opcodes = True  # Python 3.12 traces them only if somebody wanted them before
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count
