"""Replay of recorded request traces: what a host cache of some size would have been worth.

In a notebook use ``open_trace``, ``replay`` and ``size``; they are in ``api``. Each part uses only those above it.

============== ==================================================================================
**a trace**    requests as a server got them
``units``      sizes as people type them
``trace``      what a trace is; ``observed``: what its own server counted as hits
``columns``    how a trace is held in memory; ``crew``: processes that do pieces of work on traces
``readers/``   from files of any format to a trace
**hit rates**  without time
``kv_bytes/``  how many bytes of KV a token takes
``caches/``    what caches answer
``servers/``   several of them, behind a router
``hit_rates/`` replays of a trace, and their results
``sizing/``    what to buy
**with time**  latency as well as hit rates
``timed/``     through the engine model, with a clock
**output**     for people and programs
``report/``    text, JSON and a page with charts
``command/``   ``kv-sim replay`` and ``kv-sim size``
============== ==================================================================================
"""

from typing import TYPE_CHECKING

from kv_api.exports import imported_later

if TYPE_CHECKING:
    from kv_sim.replay.api import CacheReplay, Columns, Sizing, TraceOptions, open_trace, replay, size

__all__ = ["CacheReplay", "Columns", "Sizing", "TraceOptions", "open_trace", "replay", "size"]


if not TYPE_CHECKING:  # other parts of this package need less
    __getattr__ = imported_later(globals(), dict.fromkeys(__all__, "kv_sim.replay.api"))
