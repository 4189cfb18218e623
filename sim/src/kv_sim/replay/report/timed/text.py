"""What engine fidelity prints: answers side by side, or a row for each size and a recommendation."""

from collections.abc import Iterator, Sequence
from typing import Final

from kv_offload_file.stats import BORROWED
from kv_sim.console.table import aligned
from kv_sim.replay.servers.fleet import Load
from kv_sim.replay.sizing.transfer_config import PULLS, as_argument, decode_config, prefill_config, told_apart
from kv_sim.replay.timed.connectors.timed_config import has_files, shares_files
from kv_sim.replay.timed.replay import EngineReplay
from kv_sim.replay.timed.runs.answers import Answers, not_replayed
from kv_sim.replay.timed.server.settings import Contents, EngineSettings
from kv_sim.replay.timed.server.sizes import Sizes
from kv_sim.replay.timed.sweep import EngineSweep, SweepRun
from kv_sim.replay.units import counted, show_bytes

MUCH: Final = 0.5
"""If more than this share of the time to first token is queueing, memory can't help much."""
SHARED: Final = "          one for all servers; each loads what the others have there, without storing it again"
_TTFT: Final = ("mean", "p50", "p90", "p99")


def timed_lines(found: EngineReplay | EngineSweep) -> Iterator[str]:
    """What ``replay`` and ``size`` print with ``--fidelity engine``."""
    return _sweep_lines(found) if isinstance(found, EngineSweep) else _replay_lines(found)


def _replay_lines(found: EngineReplay) -> Iterator[str]:
    transfer = found.settings.transfer_config()
    has_disk, is_shared = has_files(transfer), shares_files(transfer)
    yield from header_lines(found.trace, found.settings, found.sizes, found.notes, found.load, disk=has_disk)
    yield from ([] if found.load is None else _pull_lines([found.settings], found.load))
    yield ""
    yield from aligned(rows(_columns(found), disk=has_disk, shared=is_shared))
    notes = [*_refused(found.with_connector)]
    if found.settings.contents is Contents.CHECKED:
        notes.append("contents were checked: every slot that was read held the right KV")
    yield from ["", *notes] if notes else []


def _columns(found: EngineReplay) -> list[tuple[str, Answers]]:
    prefilling = found.settings.prefill_servers
    if prefilling and found.load is not None:
        servers = found.load.servers
        split = f"{prefilling} prefill, {servers - prefilling} decode"
        return [(split, found.with_connector), (f"{servers} do both", found.without)]
    columns = [("with the connector", found.with_connector)]
    if found.without_disk is not None:
        columns.append(("without the disk", found.without_disk))
    return [*columns, ("without", found.without)]


def _pull_lines(every: Sequence[EngineSettings], load: Load) -> Iterator[str]:
    """The assumptions about servers that prefill for others."""
    first, tried = every[0], [one.prefill_servers for one in every if one.prefill_servers]
    if tried:
        counts = " or ".join(map(str, dict.fromkeys(tried)))
        yield (
            f"  pulls   prefill on {counts} of {load.servers} servers; {first.network_bandwidth / 1e9:g} GB/s × "
            f"{first.link_efficiency:g} each way and GPU, {first.pull_microseconds:g} µs a pull"
        )


def _sweep_lines(found: EngineSweep) -> Iterator[str]:
    has_disk = any(run.settings.disk_bytes_to_use for run in found.runs)
    yield from header_lines(found.trace, found.settings, found.sizes, found.notes, found.load, disk=has_disk)
    yield from ([] if found.load is None else _pull_lines([run.settings for run in found.runs], found.load))
    yield ""
    yield from (f"goal: {goal}" for goal in found.goals)
    of_each = "" if found.load is None else "; sizes are per server"
    yield f"hits by prompt tokens, and times of requests{of_each}:"
    yield from aligned(_sweep_rows(found, has_disk=has_disk))
    refused = [*_refused(found.without)]
    yield from ["", *refused] if refused else []
    if found.goals:
        yield ""
        yield from _recommendation(found, has_disk=has_disk)


def _refused(answers: Answers) -> Iterator[str]:
    return (f"not replayed: {text}" for text in not_replayed(answers.refused))


def header_lines(
    trace: str, settings: EngineSettings, sizes: Sizes, notes: Sequence[str], load: Load | None, *, disk: bool
) -> list[str]:
    """The lines about the trace and all assumptions."""
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
        *([SHARED] if disk and shares_files(s.transfer_config()) else []),
        f"  steps   at most {counted(z.max_step_tokens, 'token', 'tokens')} and "
        f"{counted(z.max_running, 'request', 'requests')}; "
        f"{s.step_microseconds:g} µs each beside the forward pass",
    ]


def _disk_line(s: EngineSettings, z: Sizes) -> str:
    return (
        f"  disk    {s.disk_read_bandwidth / 1e9:g} GB/s read, {s.disk_write_bandwidth / 1e9:g} GB/s written, "
        f"{s.disk_microseconds:g} µs a chunk, {z.disk_read.pieces_per_block:,} chunks a block"
    )


def rows(columns: Sequence[tuple[str, Answers]], *, disk: bool = False, shared: bool = False) -> list[list[str]]:
    """The answers side by side, one column each, with rows about a ``disk``, and about a ``shared`` one."""
    pulls = any(answers.pulled for _, answers in columns)
    cells = [_cells(answers, has_disk=disk, is_shared=shared, has_pulls=pulls) for _, answers in columns]
    return [["", *(name for name, _ in columns)], *([label, *(c[label] for c in cells)] for label in cells[0])]


def _cells(answers: Answers, *, has_disk: bool, is_shared: bool, has_pulls: bool) -> dict[str, str]:
    media = ("gpu", "cpu", "disk") if has_disk else ("gpu", "cpu")
    cells = {"requests": f"{answers.requests:,}"}
    for unit in ("block", "token"):
        for medium in media:
            name = medium if medium == "disk" else medium.upper()
            cells[f"hit ratio, {unit}s: {name}"] = f"{getattr(answers, f'{medium}_{unit}_ratio'):.4f}"
    moved = [("link", "loaded", answers.loads), ("link", "stored", answers.stores)]
    if has_disk:
        moved += [("disk", "read", answers.disk_reads), ("disk", "written", answers.disk_writes)]
    for what, label, copies in moved:
        cells[f"bytes {label}"] = f"{copies.bytes / (1 << 30):,.2f} GiB"
        cells[f"{what} busy, {label}"] = seconds_shown(copies.busy_seconds)
    if is_shared:
        cells["chunks borrowed"] = f"{answers.connector.get(BORROWED, 0):,}"
    cells["wait for a load, mean"] = seconds_shown(answers.load_wait.mean) if answers.load_wait.count else "-"
    if has_pulls:
        cells |= _pulled_cells(answers)
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


def _pulled_cells(answers: Answers) -> dict[str, str]:
    """The cells about pulls; dashes for servers that do both."""
    pulled = answers.pulled
    if pulled is None:
        return dict.fromkeys(
            ("prompt tokens pulled", "bytes pulled", "network busy", "wait for a pull, mean"), "-"
        )
    return {
        "prompt tokens pulled": f"{answers.pulled_token_ratio:.4f}",
        "bytes pulled": f"{pulled.copies.bytes / (1 << 30):,.2f} GiB",
        "network busy": seconds_shown(pulled.copies.busy_seconds),
        "wait for a pull, mean": seconds_shown(pulled.wait.mean) if pulled.wait.count else "-",
    }


def seconds_shown(value: float) -> str:
    """A time in a readable unit: short times in milliseconds."""
    if 0 < value < 0.1:
        return f"{value * 1e3:.3f} ms"
    return f"{value:,.3f} s"


def _sweep_rows(found: EngineSweep, *, has_disk: bool) -> list[list[str]]:
    has_split = any(run.settings.prefill_servers is not None for run in found.runs)
    others = [goal for goal in found.goals if goal.measure != "ttft" or goal.statistic not in _TTFT]
    table = [["prefill"] * has_split + ["policy", "memory"] + ["disk"] * has_disk]
    table[0] += ["GPU", "CPU"] + ["disk"] * has_disk
    table[0] += ["TTFT mean", "p50", "p90", "p99", "TPOT mean", *(goal.short for goal in others), "tokens/s"]
    table[0] += ["stored", ""]
    chosen = found.recommended
    for run in (None, *found.runs):
        answers = found.without if run is None else run.answers
        memory, disk = (0, 0) if run is None else run.size
        row = [_prefilling(run)] * has_split + [_policy(run), _size(memory)]
        row += [_size(disk)] * has_disk
        row += [f"{answers.gpu_token_ratio:.3f}", f"{answers.cpu_token_ratio:.3f}"]
        row += [f"{answers.disk_token_ratio:.3f}"] * has_disk
        row += [seconds_shown(getattr(answers.ttft, name)) for name in _TTFT]
        row += [seconds_shown(answers.time_per_output_token.mean)]
        row += [seconds_shown(goal.value(answers)) for goal in others]
        row += [f"{answers.tokens_per_second:,.0f}", _size(answers.stores.bytes)]
        is_met = bool(found.goals) and found.is_met(answers)
        table.append([*row, "◀ here" if run is not None and run is chosen else "met" if is_met else ""])
    return table


def _prefilling(run: SweepRun | None) -> str:
    return str((run.settings.prefill_servers if run else 0) or "-")


def _policy(run: SweepRun | None) -> str:
    if run is None:
        return "none"
    return run.settings.eviction_policy if any(run.size) else "-"


def _recommendation(found: EngineSweep, *, has_disk: bool) -> Iterator[str]:
    run = found.recommended
    medium = "host memory or disk" if has_disk else "host memory"
    it = "it" if len(found.goals) == 1 else "all of them"
    if found.is_met(found.without):
        yield f"recommended: no {medium}, since a server without any meets {it}"
    elif run is None:
        yield f"recommended: nothing, since no {medium} that was tried meets {it}"
        for goal in found.goals:
            least = min(goal.value(run.answers) for run in found.runs)
            yield f"  the least {goal.short} was {seconds_shown(least)}"
        yield from _queue(found)
    else:
        yield f"recommended: {', '.join(_recommended(run, found.load))}"
        yield f"  the least that was tried and meets {it}"
        if run.settings.disk_shared and found.load is not None:
            yield f"  {told_apart(found.load.servers)}"
        yield from _arguments(run.settings)


def _recommended(run: SweepRun, load: Load | None) -> Iterator[str]:
    memory, disk = run.size
    parts = [show_bytes(memory)] * bool(memory) + [f"{show_bytes(disk)} of disk"] * bool(disk)
    each = "" if load is None else f" on each of {load.servers} servers"
    if parts:
        yield run.settings.eviction_policy
        yield " and ".join(parts) + each
    prefilling = run.settings.prefill_servers or 0
    if prefilling and load is not None:
        prefill = "prefills" if prefilling == 1 else "prefill"
        yield f"{prefilling} of {load.servers} servers {prefill} for the others"


def _arguments(settings: EngineSettings) -> Iterator[str]:
    """What is pasted; where some prefill for others, of both kinds."""
    transfer = settings.transfer_config()
    if settings.prefill_servers:
        yield f"to prefill: {as_argument(prefill_config(transfer))}"
        yield f"to decode: {as_argument(decode_config())}"
        yield f'  to prefill, {PULLS} needs a "host" in its kv_connector_extra_config, by which others reach it'
    elif transfer:
        yield as_argument(transfer)


def _queue(found: EngineSweep) -> Iterator[str]:
    """A note if requests mostly wait in the queue, where memory helps only as far as other requests end sooner."""
    answers = max(found.runs, key=lambda run: run.size).answers
    queued = answers.queueing.mean / answers.ttft.mean if answers.ttft.mean else 0.0
    if queued >= MUCH:
        yield f"  even with the most memory, {queued:.0%} of the time to first token is spent in the queue:"
        yield "  more servers (--servers) or fewer requests (--arrival-scale) would help more"


def _size(count: int) -> str:
    return show_bytes(count) if count else "-"
