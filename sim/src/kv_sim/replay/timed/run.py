"""``replay_once``: one trace through one configuration of a server."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from kv_sim.replay.timed.connectors.timed_config import decides_in_known_steps, timed_config
from kv_sim.replay.timed.engine.books import Books
from kv_sim.replay.timed.engine.drive import Drive
from kv_sim.replay.timed.engine.engine import CheckedEngine, QuickEngine, TimedEngine
from kv_sim.replay.timed.refuse import refuse_too_much
from kv_sim.replay.timed.settings import Contents, EngineSettings, Sizes, Stepping, plan
from kv_sim.replay.trace import Tell, Trace, TraceRequest


def replay_once(
    trace: Trace, settings: EngineSettings, transfer: Mapping[str, Any], progress: Tell = lambda count: None
) -> tuple[TimedEngine, Books]:
    """Replay a trace with the connector that ``transfer`` configures."""
    sizes: Sizes = plan(settings, trace.block_tokens)
    refuse_too_much(settings, sizes)
    books = Books(sizes)
    is_checked = settings.contents is Contents.CHECKED
    timed = timed_config(transfer, settings.tp_size)
    engine = (CheckedEngine if is_checked else QuickEngine)(sizes, timed, books.called)
    engine.link.log, engine.disk.log = books.copy_ended, books.disk_ended
    can_fuse = not is_checked and decides_in_known_steps(timed)
    stepping = settings.stepping if can_fuse else Stepping.SINGLE
    requests = _watched(islice(trace, settings.limit), progress)
    Drive(engine, books, _scaled(requests, settings.arrival_scale), stepping).run()
    return engine, books


def _scaled(requests: Iterator[TraceRequest], scale: float) -> Iterator[TraceRequest]:
    if scale == 1:
        return requests
    return (replace(request, arrival_seconds=request.arrival_seconds * scale) for request in requests)


def _watched(requests: Iterator[TraceRequest], progress: Tell) -> Iterator[TraceRequest]:
    for count, request in enumerate(requests, 1):
        progress(count)
        yield request
