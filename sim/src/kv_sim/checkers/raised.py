"""Where a connector or a medium raised: the line that its author looks for, and what the testbed has instead."""

import sys
from collections.abc import Iterable
from traceback import walk_stack, walk_tb
from types import FrameType, SimpleNamespace
from typing import Final

from kv_api import OffloadingSpec, SchedulerSide, WorkerSide
from kv_sim.memory.kv_cache import KVCache

_LIBRARIES: Final = frozenset({"kv_sim", "kv_api", "kv_factory", "numpy", "torch"})
"""Packages whose lines say little about a mistake in a connector."""

_MADE_BY_BASES: Final = frozenset(
    {
        *("_vllm_config", "_kv_transfer_config", "_kv_cache_config", "_role", "_scheduler", "_worker"),
        *("config", "extra_config", "replicated_layout", "kv_events_config", "offload_prompt_only"),
        *("tokens_per_block", "tokens_per_hash", "blocks_per_chunk"),
    }
)
"""Attributes that the constructors of kv-api's classes make."""

_CALLED_BY_OURS: Final = ("connector", "manager", "worker", "_scheduler", "_worker")
"""Attributes of the testbed's guards and of kv-api's two sides: the object that they call."""


def what_there_is(error: BaseException) -> str:
    """If an attribute of the testbed's objects is missing: those that exist."""
    owner = error.obj if isinstance(error, AttributeError) else None
    if isinstance(owner, SimpleNamespace):
        return f"; here it has: {', '.join(sorted(vars(owner)))}"
    if isinstance(owner, KVCache):
        return "; a layer here is a numpy array with read(block), write(block, page) and device"
    if type(owner).__module__.startswith("kv_sim.engine."):
        return "; kv_api.engine says what there is"
    is_ours = isinstance(owner, (SchedulerSide, WorkerSide, OffloadingSpec))
    if is_ours and getattr(error, "name", None) in _MADE_BY_BASES:
        return "; its constructor has to call super().__init__"
    return ""


def _defined_at(frame: FrameType) -> str | None:
    """Where the method is that this frame called, if it is one that calls a connector's or a medium's.

    Arguments that a method doesn't take are an error of the line that calls it, which is no author's.
    """
    if str(frame.f_globals.get("__name__")).partition(".")[0] not in {"kv_sim", "kv_api"}:
        return None
    caller, name = frame.f_locals.get("self"), frame.f_locals.get("name", frame.f_code.co_name)
    held = [vars(caller).get(part) for part in _CALLED_BY_OURS] if hasattr(caller, "__dict__") else []
    for method in (getattr(type(one), str(name), None) for one in held if one is not None):
        code = getattr(method, "__code__", None)
        if code is not None and not code.co_filename.endswith("two_sided.py"):
            return f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}, where it is defined"
    return None


def innermost(error: BaseException) -> str:
    """Where it was raised; if that is in a library, or in the testbed, also the caller's line."""
    lines = [*walk_tb(error.__traceback__)]
    if isinstance(error, TypeError) and (defined := _defined_at(lines[-1][0])) is not None:
        return defined
    return _place(lines)


def runs_at(frame: FrameType) -> str:
    """Where this code is now, in the same words."""
    return _place([*walk_stack(frame)][::-1])


def _place(lines: Iterable[tuple[FrameType, int]]) -> str:
    places = []
    for frame, line in lines:
        place = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{line} in {frame.f_code.co_qualname}"
        module = str(frame.f_globals.get("__name__"))
        package = module.partition(".")[0]
        if not module.startswith("kv_sim.console."):  # what ends a call from outside is no place of it
            places.append((place, package in _LIBRARIES or package in sys.stdlib_module_names))
    (place, is_library), callers = places[-1], [caller for caller, is_library in places if not is_library]
    return f"{place}, called at {callers[-1]}" if is_library and callers else place
