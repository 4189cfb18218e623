"""``replay_engine``: a trace on a server with a connector, and on the same server without.

Where files stand behind another medium it is replayed a third time, with all but these. Of several servers each
gets its share of the trace, and goes its own way.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from kv_sim.command.table import aligned
from kv_sim.replay.fleet import Fleet, Load
from kv_sim.replay.side_by_side import Progress
from kv_sim.replay.timed.answers import Answers
from kv_sim.replay.timed.connectors.timed_config import NOTHING, has_files, without_files
from kv_sim.replay.timed.servers import Server, replay_on, shares_of
from kv_sim.replay.timed.settings import Contents, EngineSettings, Sizes, plan
from kv_sim.replay.timed.table import header_lines, rows
from kv_sim.replay.trace import Trace


@dataclass(frozen=True)
class EngineReplay:
    """The answers, and everything that they rest on."""

    trace: str
    settings: EngineSettings
    sizes: Sizes
    with_connector: Answers
    without: Answers
    without_disk: Answers | None = None
    """With the connector's other media alone; None where it has no disk, or nothing else."""
    notes: tuple[str, ...] = ()
    """What a reader decided about the trace, and what it left out."""
    load: Load | None = None
    """What came to each server, where there are several."""

    def table(self) -> str:
        """What to print."""
        has_disk = has_files(self.settings.transfer_config())
        lines = [*header_lines(self.trace, self.settings, self.sizes, self.notes, self.load, disk=has_disk), ""]
        columns = [("with the connector", self.with_connector)]
        if self.without_disk is not None:
            columns.append(("without the disk", self.without_disk))
        columns.append(("without", self.without))
        return "\n".join([*lines, *aligned(rows(columns, disk=has_disk)), *self._notes()])

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "trace": self.trace,
            "notes": list(self.notes),
            "load": None if self.load is None else asdict(self.load),
            "settings": plain(asdict(self.settings)),
            "sizes": plain(asdict(self.sizes)),
            "kv_transfer_config": self.settings.transfer_config(),
            "with_connector": self.with_connector.as_json(),
            "without_disk": None if self.without_disk is None else self.without_disk.as_json(),
            "without": self.without.as_json(),
        }

    def _notes(self) -> list[str]:
        answers, notes = self.with_connector, []
        notes += [f"not replayed: {text}" for text in not_replayed(answers.refused)]
        if self.settings.contents is Contents.CHECKED:
            notes.append("contents were checked: every slot that was read held what it should")
        return ["", *notes] if notes else []


def not_replayed(refused: Mapping[str, int]) -> Iterator[str]:
    """How many requests the engine didn't take, for each reason."""
    for reason, count in refused.items():
        yield f"1 request, which {reason}" if count == 1 else f"{count:,} requests, each of which {reason}"


def replay_engine(
    trace: Trace,
    settings: EngineSettings,
    progress: Progress = lambda share: None,
    fleet: Fleet | None = None,
    *,
    jobs: int = 1,
) -> EngineReplay:
    """Replay a trace with the settings' connector, then without, in so many processes.

    A ``fleet`` has several such servers. ``progress`` hears which share of all of it is done.
    """
    sizes, transfer = plan(settings, trace.block_tokens), settings.transfer_config()
    shares, left = shares_of(trace, fleet, settings.limit), without_files(transfer)
    configs = [transfer, NOTHING] if left is None else [transfer, NOTHING, left]
    servers = [Server(settings, config) for config in configs]
    with_connector, without, *without_disk = replay_on(shares, servers, jobs, progress)
    return EngineReplay(
        trace=trace.name,
        settings=settings,
        sizes=sizes,
        with_connector=with_connector,
        without=without,
        without_disk=without_disk[0] if without_disk else None,
        notes=notes_of(trace),
        load=shares.load,
    )


def notes_of(trace: Trace) -> tuple[str, ...]:
    """What was noted of a trace that was read; one that was made has no notes."""
    return tuple(getattr(trace, "notes", ()))


def plain(value: Any) -> Any:
    """Enums by value, at any depth."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value.value if isinstance(value, Enum) else value
