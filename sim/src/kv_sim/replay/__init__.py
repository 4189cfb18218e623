"""Replay of recorded request traces: what a host cache of some size would have been worth.

In a notebook use ``open_trace``, ``replay`` and ``size``; they are in ``api``. The command line is in
``command/``.

=================== ============================================================================
**a trace**         requests as a server got them
``trace``           what a trace is; ``columns``: how one is held in memory
``readers/``        from files of any format to a trace
``observed``        what the trace's own server counted as hits
**KV of a token**   how many bytes it takes
``kv_model``        the sum; ``models``: of known models; ``model_config``: of a ``config.json``
``units``           sizes as people type them
**hit rates**       without time
``caches/``         what caches answer
``policies``        the names of eviction policies
``results``         what a replay returns; ``facts``: what every result says of the trace
``parallel``        several replays at once; ``side_by_side``: the processes that do them
``stream``          a replay while the trace is still being read
**sizing**          what to buy
``sizing``          tries capacities and policies; ``recommended``: picks one of them
``around``          the caches around the one that is sized
``transfer_config`` the ``--kv-transfer-config`` to paste
**several servers** behind a router
``routing``         the names of routers; ``routers``: which server gets which request
``fleet``           each server's share of the trace
**with time**       latency as well as hit rates
``timed/``          through the engine model, with a clock
**output**          for people and programs
``report/``         text, JSON and a page with charts; ``oracle``: a file for other simulators
=================== ============================================================================
"""

from typing import TYPE_CHECKING

from kv_api.exports import imported_later

if TYPE_CHECKING:
    from kv_sim.replay.api import CacheReplay, Columns, Sizing, TraceOptions, open_trace, replay, size

__all__ = ["CacheReplay", "Columns", "Sizing", "TraceOptions", "open_trace", "replay", "size"]


if not TYPE_CHECKING:  # other parts of this package need less
    __getattr__ = imported_later(globals(), dict.fromkeys(__all__, "kv_sim.replay.api"))
