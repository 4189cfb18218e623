"""``replay_once``: one trace through one configuration of a server; ``replay_together``: of several that share."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from kv_sim.replay.timed.connectors.timed_config import decides_in_known_steps, timed_config
from kv_sim.replay.timed.engine.books import Books
from kv_sim.replay.timed.engine.drive import Drive
from kv_sim.replay.timed.engine.engine import CheckedEngine, QuickEngine, TimedEngine
from kv_sim.replay.timed.engine.machine import Machine, Seat, take_turns
from kv_sim.replay.timed.refuse import refuse_too_much
from kv_sim.replay.timed.settings import Contents, EngineSettings, Sizes, Stepping, plan
from kv_sim.replay.trace import Tell, Trace, TraceRequest


def replay_once(
    trace: Trace, settings: EngineSettings, transfer: Mapping[str, Any], progress: Tell = lambda count: None
) -> tuple[TimedEngine, Books]:
    """Replay a trace with the connector that ``transfer`` configures."""
    drive = _drive(trace, settings, transfer, progress)
    drive.run()
    return drive.engine, drive.books


def replay_together(
    traces: Sequence[Trace],
    settings: EngineSettings,
    transfer: Mapping[str, Any],
    progress: Tell = lambda count: None,
) -> list[tuple[TimedEngine, Books]]:
    """Replay what comes to each server of a machine, whose files they share."""
    machine = Machine(len(traces), plan(settings, traces[0].block_tokens).parts)
    done = [0] * len(traces)

    def tell_of(number: int) -> Tell:
        def tell(count: int) -> None:
            done[number] = count
            progress(sum(done))

        return tell

    drives = [
        _drive(trace, settings, transfer, tell_of(seat.number), seat)
        for trace, seat in zip(traces, machine.seats, strict=True)
    ]
    take_turns(drive.moments() for drive in drives)
    for drive in drives:
        drive.check_end()
    machine.folders.check()
    return [(drive.engine, drive.books) for drive in drives]


def _drive(
    trace: Trace, settings: EngineSettings, transfer: Mapping[str, Any], progress: Tell, seat: Seat | None = None
) -> Drive:
    sizes: Sizes = plan(settings, trace.block_tokens)
    refuse_too_much(settings, sizes)
    books = Books(sizes)
    is_checked = settings.contents is Contents.CHECKED
    timed = timed_config(transfer, settings.tp_size, seat)
    engine = (CheckedEngine if is_checked else QuickEngine)(sizes, timed, books.called, seat)
    engine.link.log, engine.disk.log = books.copy_ended, books.disk_ended
    can_fuse = not is_checked and decides_in_known_steps(timed)
    stepping = settings.stepping if can_fuse else Stepping.SINGLE
    requests = _watched(islice(trace, settings.limit), progress)
    return Drive(engine, books, _scaled(requests, settings.arrival_scale), stepping)


def _scaled(requests: Iterator[TraceRequest], scale: float) -> Iterator[TraceRequest]:
    if scale == 1:
        return requests
    return (replace(request, arrival_seconds=request.arrival_seconds * scale) for request in requests)


def _watched(requests: Iterator[TraceRequest], progress: Tell) -> Iterator[TraceRequest]:
    for count, request in enumerate(requests, 1):
        progress(count)
        yield request
