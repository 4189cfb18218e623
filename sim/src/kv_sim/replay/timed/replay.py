"""``replay_engine``: a trace on a server with a connector, and on the same server without.

Where files stand behind another medium it is replayed a third time, with all but these. Of several servers each
gets its share of the trace, and goes its own way.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np

from kv_api import ConfigError
from kv_sim.command.table import aligned
from kv_sim.replay.columns import Columns
from kv_sim.replay.fleet import Fleet, Load, RoutedTrace
from kv_sim.replay.timed.answers import Answers, answers_of, rows
from kv_sim.replay.timed.run import Progress, replay_once
from kv_sim.replay.timed.settings import Contents, EngineSettings, Sizes, plan
from kv_sim.replay.timed.stack import NOTHING, has_files, without_files
from kv_sim.replay.trace import Trace
from kv_sim.replay.units import counted


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
        lines = [*self._header(), ""]
        columns = [("with the connector", self.with_connector)]
        if self.without_disk is not None:
            columns.append(("without the disk", self.without_disk))
        columns.append(("without", self.without))
        return "\n".join([*lines, *aligned(rows(columns, disk=self._has_disk)), *self._notes()])

    @property
    def _has_disk(self) -> bool:
        return has_files(self.settings.transfer_config())

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "trace": self.trace,
            "notes": list(self.notes),
            "load": None if self.load is None else asdict(self.load),
            "settings": _plain(asdict(self.settings)),
            "sizes": _plain(asdict(self.sizes)),
            "kv_transfer_config": self.settings.transfer_config(),
            "with_connector": self.with_connector.as_json(),
            "without_disk": None if self.without_disk is None else self.without_disk.as_json(),
            "without": self.without.as_json(),
        }

    def _header(self) -> list[str]:
        s, z = self.settings, self.sizes
        model, gpu = s.model, s.gpu
        return [
            f"{self.trace}, {z.block_tokens} tokens a block, on {s.tp_size} × {gpu.name} with {model.name}",
            *(f"  {note}" for note in self.notes),
            *([] if self.load is None else [f"  {self.load}"]),
            f"  model   {model.parameters / 1e9:.2f} G parameters, {model.layers} layers, {model.heads} heads, "
            f"{model.kv_heads} of KV, of {model.head_dim}, {model.dtype_bytes} bytes a number; "
            f"{z.kv_bytes_per_token:,} bytes of KV a token; at most {z.max_model_len:,} tokens",
            f"  GPU     {gpu.flops / 1e12:,.0f} TFLOP/s × {s.flops_efficiency:g}, "
            f"{gpu.hbm_bandwidth / 1e12:g} TB/s × {s.hbm_efficiency:g}, "
            f"{gpu.memory_bytes / (1 << 30):g} GiB × {s.gpu_memory_utilization:g}; "
            f"{counted(z.gpu_blocks, 'block', 'blocks')} = {z.gpu_blocks * z.block_tokens:,} tokens",
            f"  link    {gpu.link_bandwidth / 1e9:g} GB/s × {s.link_efficiency:g} each way and GPU, "
            f"{s.copy_microseconds:g} µs a copy, {z.pieces_per_block:,} copies a block",
            *([self._disk()] if self._has_disk else []),
            f"  steps   at most {counted(z.max_step_tokens, 'token', 'tokens')} and "
            f"{counted(z.max_running, 'request', 'requests')}; "
            f"{s.step_microseconds:g} µs each beside the forward pass",
        ]

    def _disk(self) -> str:
        s, z = self.settings, self.sizes
        return (
            f"  disk    {s.disk_read_bandwidth / 1e9:g} GB/s read, {s.disk_write_bandwidth / 1e9:g} GB/s written, "
            f"{s.disk_microseconds:g} µs a chunk, {z.disk_read.pieces_per_block:,} chunks a block"
        )

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
    trace: Trace, settings: EngineSettings, progress: Progress | None = None, fleet: Fleet | None = None
) -> EngineReplay:
    """Replay a trace with the settings' connector, then without. ``progress`` counts requests over all of it.

    A ``fleet`` has several such servers; who gets what is decided beforehand, whatever they do.
    """
    sizes = plan(settings, trace.block_tokens)
    routed = None if fleet is None or fleet.servers == 1 else RoutedTrace(_first(trace, settings.limit), fleet)
    shares: list[Trace] = [trace] if routed is None else [share.columns for share in routed.shares]
    done = 0

    def count(requests: int) -> None:
        if progress is not None:
            progress(done + requests)

    def answer(transfer: Mapping[str, Any]) -> Answers:
        nonlocal done
        runs = []
        for share in shares:
            engine, books = replay_once(share, settings, transfer, count)
            done += len(books.ttft) + sum(books.refused.values())
            runs.append((engine, books))
        return answers_of(*runs)

    transfer = settings.transfer_config()
    with_connector = answer(transfer)
    left = without_files(transfer)
    without_disk = None if left is None else answer(left)
    without = answer(NOTHING)
    notes = tuple(getattr(trace, "notes", ()))  # of a trace that was read; one that was made has none
    load = None if routed is None else routed.load
    return EngineReplay(
        trace=trace.name,
        settings=settings,
        sizes=sizes,
        with_connector=with_connector,
        without=without,
        without_disk=without_disk,
        notes=notes,
        load=load,
    )


def _first(trace: Trace, limit: int | None) -> Columns:
    """So many requests of a trace; only of one that was read is known who shares what with whom."""
    if not isinstance(trace, Columns):
        raise ConfigError(f"{trace.name}: several servers need a trace that open_trace has read")
    return trace if limit is None else trace.of(np.arange(min(limit, len(trace))))


def num_replays(settings: EngineSettings) -> int:
    """How many times ``replay_engine`` replays a trace."""
    return 2 if without_files(settings.transfer_config()) is None else 3


def _plain(value: Any) -> Any:
    """Enums by value, at any depth."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.value if isinstance(value, Enum) else value
