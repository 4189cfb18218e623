"""Replay of recorded request traces: what a host cache of some size would have been worth.

In a notebook ``open_trace`` reads a trace, ``replay`` runs it through the real manager, and ``size`` says how much
memory to buy; they are in ``api``. On the command line it is ``command/``.

======================= ===================================================================================
**a trace**             ``trace``: what one is, ``columns``: how it is held; ``readers/`` make one of a file;
                        ``observed``: what its own server answered, by its own count
**what a token takes**  ``kv_model`` (the sum), ``models`` (by name), ``model_config`` (from a file); ``units``
                        are what people type
**what caches answer**  ``caches/``: of one size, of all sizes at once, and what no policy beats; ``policies``
                        are their names
**replays**             ``results`` of several; ``parallel`` does them ``side_by_side`` in processes, ``stream``
                        while a trace is read
**what to buy**         ``sizing``: all that was tried, with what stands ``around`` it; what is ``recommended``
                        of it, and its ``transfer_config``
**several servers**     ``routing``: the ways, ``routers`` say who gets what, ``fleet`` holds their shares
**with time**           ``timed/``: through the engine model, with a clock
**told to others**      ``report/`` for people; ``oracle`` for other simulators
======================= ===================================================================================
"""

from typing import TYPE_CHECKING

from kv_api.exports import imported_later

if TYPE_CHECKING:
    from kv_sim.replay.api import CacheReplay, Columns, Sizing, TraceOptions, open_trace, replay, size

__all__ = ["CacheReplay", "Columns", "Sizing", "TraceOptions", "open_trace", "replay", "size"]


if not TYPE_CHECKING:  # other parts of this package need less
    __getattr__ = imported_later(globals(), dict.fromkeys(__all__, "kv_sim.replay.api"))
