"""``replay_engine``: a trace on a server with a connector, and on the same server without."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from kv_sim.command.table import aligned
from kv_sim.replay.timed.answers import Answers, answers_of, rows
from kv_sim.replay.timed.run import Progress, replay_once
from kv_sim.replay.timed.settings import Contents, EngineSettings, Sizes, plan
from kv_sim.replay.timed.stack import NOTHING
from kv_sim.replay.trace import Trace


@dataclass(frozen=True)
class EngineReplay:
    """Both answers, and everything that they rest on."""

    trace: str
    settings: EngineSettings
    sizes: Sizes
    with_connector: Answers
    without: Answers
    notes: tuple[str, ...] = ()
    """What a reader decided about the trace, and what it left out."""

    def table(self) -> str:
        """What to print."""
        lines = [*self._header(), ""]
        columns = [("with the connector", self.with_connector), ("without", self.without)]
        return "\n".join([*lines, *aligned(rows(columns)), *self._notes()])

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "trace": self.trace,
            "notes": list(self.notes),
            "settings": _plain(asdict(self.settings)),
            "sizes": _plain(asdict(self.sizes)),
            "kv_transfer_config": self.settings.transfer_config(),
            "with_connector": self.with_connector.as_json(),
            "without": self.without.as_json(),
        }

    def _header(self) -> list[str]:
        s, z = self.settings, self.sizes
        model, gpu = s.model, s.gpu
        return [
            f"{self.trace}, {z.block_tokens} tokens a block, on {s.tp_size} × {gpu.name} with {model.name}",
            *(f"  {note}" for note in self.notes),
            f"  model   {model.parameters / 1e9:.2f} G parameters, {model.layers} layers, {model.heads} heads, "
            f"{model.kv_heads} of KV, of {model.head_dim}, {model.dtype_bytes} bytes a number; "
            f"{z.kv_bytes_per_token:,} bytes of KV a token; at most {z.max_model_len:,} tokens",
            f"  GPU     {gpu.flops / 1e12:,.0f} TFLOP/s × {s.flops_efficiency:g}, "
            f"{gpu.hbm_bandwidth / 1e12:g} TB/s × {s.hbm_efficiency:g}, "
            f"{gpu.memory_bytes / (1 << 30):g} GiB × {s.gpu_memory_utilization:g}; "
            f"{z.gpu_blocks:,} blocks = {z.gpu_blocks * z.block_tokens:,} tokens",
            f"  link    {gpu.link_bandwidth / 1e9:g} GB/s × {s.link_efficiency:g} each way and GPU, "
            f"{s.copy_microseconds:g} µs a copy, {z.pieces_per_block:,} copies a block",
            f"  steps   at most {z.max_step_tokens:,} tokens and {z.max_running:,} requests; "
            f"{s.step_microseconds:g} µs each beside the forward pass",
        ]

    def _notes(self) -> list[str]:
        answers, notes = self.with_connector, []
        for reason, count in answers.refused.items():
            notes.append(f"not replayed: {count:,} requests, each of which {reason}")
        if self.settings.contents is Contents.CHECKED:
            notes.append("contents were checked: every slot that was read held what it should")
        return ["", *notes] if notes else []


def replay_engine(trace: Trace, settings: EngineSettings, progress: Progress | None = None) -> EngineReplay:
    """Replay a trace with the settings' connector, then without one. ``progress`` counts requests over both."""
    sizes = plan(settings, trace.block_tokens)
    done = 0

    def count(requests: int) -> None:
        if progress is not None:
            progress(done + requests)

    with_connector = _answer(trace, settings, settings.transfer_config(), count)
    done = with_connector.requests + sum(with_connector.refused.values())
    without = _answer(trace, settings, NOTHING, count)
    notes = tuple(getattr(trace, "notes", ()))  # of a trace that was read; one that was made has none
    return EngineReplay(trace.name, settings, sizes, with_connector, without, notes)


def _answer(trace: Trace, settings: EngineSettings, transfer: Mapping[str, Any], progress: Progress) -> Answers:
    return answers_of(*replay_once(trace, settings, transfer, progress))


def _plain(value: Any) -> Any:
    """Enums by value, at any depth."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.value if isinstance(value, Enum) else value
