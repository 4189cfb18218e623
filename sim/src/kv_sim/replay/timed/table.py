"""Answers in tables, for a reader."""

from collections.abc import Sequence

from kv_sim.replay.fleet import Load
from kv_sim.replay.timed.answers import Answers
from kv_sim.replay.timed.settings import EngineSettings, Sizes
from kv_sim.replay.units import counted


def header_lines(
    trace: str, settings: EngineSettings, sizes: Sizes, notes: Sequence[str], load: Load | None, *, disk: bool
) -> list[str]:
    """What was replayed, and all that is assumed."""
    s, z = settings, sizes
    model, gpu = s.model, s.gpu
    return [
        f"{trace}, {z.block_tokens} tokens a block, on {s.tp_size} × {gpu.name} with {model.name}",
        *(f"  {note}" for note in notes),
        *([] if load is None else [f"  {load}"]),
        f"  model   {model.parameters / 1e9:.2f} G parameters, {model.layers} layers, {model.heads} heads, "
        f"{model.kv_heads} of KV, of {model.head_dim}, {model.dtype_bytes} bytes a number; "
        f"{z.kv_bytes_per_token:,} bytes of KV a token; at most {z.max_model_len:,} tokens",
        f"  GPU     {gpu.flops / 1e12:,.0f} TFLOP/s × {s.flops_efficiency:g}, "
        f"{gpu.hbm_bandwidth / 1e12:g} TB/s × {s.hbm_efficiency:g}, "
        f"{gpu.memory_bytes / (1 << 30):g} GiB × {s.gpu_memory_utilization:g}; "
        f"{counted(z.gpu_blocks, 'block', 'blocks')} = {z.gpu_blocks * z.block_tokens:,} tokens",
        f"  link    {gpu.link_bandwidth / 1e9:g} GB/s × {s.link_efficiency:g} each way and GPU, "
        f"{s.copy_microseconds:g} µs a copy, {z.pieces_per_block:,} copies a block",
        *([_disk_line(s, z)] if disk else []),
        f"  steps   at most {counted(z.max_step_tokens, 'token', 'tokens')} and "
        f"{counted(z.max_running, 'request', 'requests')}; "
        f"{s.step_microseconds:g} µs each beside the forward pass",
    ]


def _disk_line(s: EngineSettings, z: Sizes) -> str:
    return (
        f"  disk    {s.disk_read_bandwidth / 1e9:g} GB/s read, {s.disk_write_bandwidth / 1e9:g} GB/s written, "
        f"{s.disk_microseconds:g} µs a chunk, {z.disk_read.pieces_per_block:,} chunks a block"
    )


def rows(columns: Sequence[tuple[str, Answers]], *, disk: bool = False) -> list[list[str]]:
    """The answers side by side, one column each; of a ``disk`` where there is one."""
    cells = [_cells(answers, disk) for _, answers in columns]
    return [["", *(name for name, _ in columns)], *([label, *(c[label] for c in cells)] for label in cells[0])]


def _cells(answers: Answers, disk: bool) -> dict[str, str]:
    media = ("gpu", "cpu", "disk") if disk else ("gpu", "cpu")
    cells = {"requests": f"{answers.requests:,}"}
    for unit in ("block", "token"):
        for medium in media:
            name = medium if medium == "disk" else medium.upper()
            cells[f"hit ratio, {unit}s: {name}"] = f"{getattr(answers, f'{medium}_{unit}_ratio'):.4f}"
    moved = [("link", "loaded", answers.loads), ("link", "stored", answers.stores)]
    if disk:
        moved += [("disk", "read", answers.disk_reads), ("disk", "written", answers.disk_writes)]
    for what, label, copies in moved:
        cells[f"bytes {label}"] = f"{copies.bytes / (1 << 30):,.2f} GiB"
        cells[f"{what} busy, {label}"] = seconds_shown(copies.busy_seconds)
    cells["wait for a load, mean"] = seconds_shown(answers.load_wait.mean) if answers.load_wait.count else "-"
    cells["host waits for copies"] = seconds_shown(answers.host_wait_seconds)
    for label, spread in (
        ("time to first token", answers.ttft),
        ("time per output token", answers.time_per_output_token),
        ("latency", answers.latency),
        ("queueing", answers.queueing),
    ):
        for part in ("mean", "p50", "p90", "p99"):
            cells[f"{label}, {part}"] = seconds_shown(getattr(spread, part))
    return cells | {
        "output tokens/s": f"{answers.output_tokens_per_second:,.1f}",
        "all tokens/s": f"{answers.tokens_per_second:,.1f}",
        "preemptions": f"{answers.preemptions:,}",
        "first arrival to last token": seconds_shown(answers.seconds),
        "engine steps": f"{answers.steps:,}",
    }


def seconds_shown(value: float) -> str:
    """For people."""
    if 0 < value < 0.1:
        return f"{value * 1e3:.3f} ms"
    return f"{value:,.3f} s"
