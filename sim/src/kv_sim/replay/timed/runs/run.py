"""Replays one trace on one server (``replay_once``), or on several that share files (``replay_together``)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from kv_sim.replay.timed.connectors.timed_config import decides_in_known_steps, timed_config
from kv_sim.replay.timed.engine.arrivals import Numbered, TraceArrivals
from kv_sim.replay.timed.engine.books import Books
from kv_sim.replay.timed.engine.drive import Drive
from kv_sim.replay.timed.engine.engine import CheckedEngine, QuickEngine, TimedEngine
from kv_sim.replay.timed.engine.request import Names
from kv_sim.replay.timed.engine.seat import Machine, Seat
from kv_sim.replay.timed.engine.together import run_together
from kv_sim.replay.timed.server.refuse import refuse_too_much
from kv_sim.replay.timed.server.settings import Contents, EngineSettings, Stepping
from kv_sim.replay.timed.server.sizes import Sizes, plan
from kv_sim.replay.trace import Tell, Trace, TraceRequest

Share = Iterator[Numbered]
"""The requests of one of several servers, each with its place in the whole trace."""


def replay_once(
    trace: Trace, settings: EngineSettings, transfer: Mapping[str, Any], progress: Tell = lambda count: None
) -> tuple[TimedEngine, Books]:
    """Replay a trace with the connector that ``transfer`` configures."""
    requests = _watched(islice(trace, settings.limit), progress)
    drive = _drive(scaled(enumerate(requests), settings), settings, transfer, trace.block_tokens)
    run_together([drive])
    return drive.engine, drive.books


def replay_together(
    shares: Sequence[Share], settings: EngineSettings, transfer: Mapping[str, Any], block_tokens: int
) -> list[tuple[TimedEngine, Books]]:
    """Replay each server's share of a trace; the servers share the files of one machine."""
    machine, names = Machine(), Names(plan(settings, block_tokens).parts)
    drives = [
        _drive(scaled(share, settings), settings, transfer, block_tokens, Seat(number, names, machine))
        for number, share in enumerate(shares)
    ]
    run_together(drives)
    machine.folders.check()
    return [(drive.engine, drive.books) for drive in drives]


def _drive(
    requests: Share,
    settings: EngineSettings,
    transfer: Mapping[str, Any],
    block_tokens: int,
    seat: Seat | None = None,
) -> Drive:
    sizes: Sizes = plan(settings, block_tokens)
    refuse_too_much(settings, sizes)
    books = Books(sizes)
    is_checked = settings.contents is Contents.CHECKED
    timed = timed_config(transfer, settings.tp_size, seat)
    engine = (CheckedEngine if is_checked else QuickEngine)(sizes, timed, books.called, seat)
    engine.link.log, engine.disk.log = books.copy_ended, books.disk_ended
    can_fuse = not is_checked and decides_in_known_steps(timed)
    stepping = settings.stepping if can_fuse else Stepping.SINGLE
    return Drive(engine, books, TraceArrivals(requests, books, engine.make_request), stepping)


def scaled(requests: Share, settings: EngineSettings) -> Share:
    """The same requests, with their arrivals spread by the settings' ``arrival_scale``."""
    if settings.arrival_scale == 1:
        return requests
    return (
        (number, replace(request, arrival_seconds=request.arrival_seconds * settings.arrival_scale))
        for number, request in requests
    )


def _watched(requests: Iterator[TraceRequest], progress: Tell) -> Iterator[TraceRequest]:
    for count, request in enumerate(requests, 1):
        progress(count)
        yield request
