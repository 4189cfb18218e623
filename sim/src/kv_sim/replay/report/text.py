"""What ``replay`` and ``size`` print."""

from collections.abc import Iterable, Iterator

from kv_offload import StoreWhen
from kv_sim.console.table import aligned
from kv_sim.replay.caches.beside import ObservedRatios
from kv_sim.replay.hit_rates.facts import Facts, WholeFacts
from kv_sim.replay.hit_rates.results import CacheCounts, CacheReplay, Replays
from kv_sim.replay.hit_rates.stream import StreamReplays
from kv_sim.replay.report.phrases import (
    DISK_SHARED,
    STORED_WHEN_EVICTED,
    blocks_shown,
    engines_told_apart,
    gain_shown,
    listed,
    nothing_more,
    on_each,
    ratios_shown,
    show_seconds,
    size_shown,
)
from kv_sim.replay.sizing.capacities import Sizing
from kv_sim.replay.sizing.transfer_config import as_argument
from kv_sim.replay.units import Footprint, counted, show_bytes, show_count


def trace_lines(found: Facts, model: str | None) -> Iterator[str]:
    """The lines about the trace."""
    totals = found.totals
    different = ""
    if isinstance(found, WholeFacts):
        different = f", {counted(found.unique_blocks, 'different one', 'different ones')}"
    yield (
        f"{found.trace}: {counted(found.requests, 'request', 'requests')} in "
        f"{show_seconds(found.duration_seconds)}, {show_count(totals.tokens)} prompt tokens, "
        f"{blocks_shown(totals.blocks)} of {totals.block_tokens} tokens{different}"
    )
    for note in found.notes:
        yield f"  {note}"
    if model is not None:
        yield f"  {model}"
    load = found.load
    if load is not None:
        yield f"  {load}"
    if found.disk_shared:
        yield f"  {DISK_SHARED}"
    if found.observed is not None:
        yield f"  {found.observed}"
    if not isinstance(found, WholeFacts):
        return
    if load is None:
        yield f"an infinite cache would hit: {ratios_shown(found.infinite)}"
    else:
        yield f"an infinite cache on each server would hit: {ratios_shown(found.infinite)}"
        yield f"one infinite cache for all servers would hit: {ratios_shown(found.infinite_shared)}"


def replay_lines(found: Replays | StreamReplays, model: str | None) -> Iterator[str]:
    """The table of ``replay``."""
    yield from trace_lines(found, model)
    has_gpu = any(run.setup.gpu_blocks for run in found.runs)
    has_disk, shared = any(run.setup.disk for run in found.runs), found.disk_shared
    yield ""
    yield from _table(
        list(_replay_cells(run, has_gpu=has_gpu, has_disk=has_disk, shared=shared)) for run in found.runs
    )
    yield ""
    if has_disk:
        yield "the disk behind it:"
        yield from _table(list(_disk_cells(run, shared=shared)) for run in found.runs)
        yield ""
    if found.observed is not None:
        yield "compared with the hits that the trace's own server counted:"
        yield from _table(list(_beside_cells(run, found.observed, has_disk=has_disk)) for run in found.runs)
        yield ""
    where = ["host memory"] + ["the disk"] * has_disk + ["the GPU's prefix cache"] * has_gpu
    yield f"Ratios are hits of {listed(where)}: of all blocks, of all prompt tokens, of all full blocks."
    if found.runs[0].setup.store_when is StoreWhen.EVICTED:
        yield f"{STORED_WHEN_EVICTED[0].upper()}{STORED_WHEN_EVICTED[1:]}."
    if found.observed is not None:
        yield "It had: what that server counted, for the same prompts. Apart: tokens that only one of the two had."
    if found.load is not None:
        yield "Sizes are per server; hits and traffic are totals over all servers."
    if shared:
        yield "Neighbours: the other servers' disks. Borrowed: loaded from these, and not counted in loaded."
    if not isinstance(found, StreamReplays):
        yield "MIN: the most that any policy could hit, by token. Age: since a hit's last use, median and 90 %."


def _table(rows: Iterable[list[tuple[str, str]]]) -> Iterator[str]:
    """Rows of cells, each with its head."""
    listed_rows = [*rows]
    heads = [head for head, _ in listed_rows[0]]
    yield from aligned([heads, *([text for _, text in row] for row in listed_rows)])


def _replay_cells(run: CacheCounts, *, has_gpu: bool, has_disk: bool, shared: bool) -> Iterator[tuple[str, str]]:
    """A row of ``replay``'s table, each cell with its head."""
    setup, foot = run.setup, run.footprint
    yield "policy", setup.policy
    yield "blocks", f"{setup.capacity:,}"
    yield "tokens", show_count(setup.capacity * foot.block_tokens)
    yield "memory", _bytes(foot, setup.capacity)
    if has_disk:
        yield "disk", size_shown(foot, setup.disk)
    yield "block", f"{run.both.block:.3f}"
    yield "token", f"{run.both.token:.3f}"
    yield "full block", f"{run.both.full_block:.3f}"
    if has_gpu:
        yield "GPU token", f"{run.gpu.token:.3f}"
    if has_gpu or has_disk:
        yield "CPU token", f"{run.cpu.token:.3f}"
    if has_disk:
        yield "disk token", f"{run.disk.ratios.token:.3f}"
    if shared:
        yield "neighbours' token", f"{run.disk.neighbours.token:.3f}"
    if isinstance(run, CacheReplay):
        yield "MIN", f"{run.best.token:.3f}"
    yield "loaded", _traffic(foot, run.loaded_blocks)
    yield "stored", _traffic(foot, run.stored_blocks)
    yield "evicted", _traffic(foot, run.evicted_blocks)
    yield "refused", _traffic(foot, run.refused_blocks)
    if isinstance(run, CacheReplay):
        yield "age", show_seconds(run.ages.p50_seconds)
        yield "90 %", show_seconds(run.ages.p90_seconds)


def _disk_cells(run: CacheCounts, *, shared: bool) -> Iterator[tuple[str, str]]:
    """The cells about the disk in a row of the table."""
    setup, foot, disk = run.setup, run.footprint, run.disk
    yield "policy", setup.policy
    yield "memory", size_shown(foot, setup.capacity)
    yield "blocks", f"{setup.disk:,}"
    yield "tokens", show_count(setup.disk * foot.block_tokens)
    yield "disk", _bytes(foot, setup.disk)
    yield "loaded", _traffic(foot, disk.loaded_blocks)
    if shared:
        yield "borrowed", _traffic(foot, disk.borrowed_blocks)
    yield "stored", _traffic(foot, disk.stored_blocks)
    yield "evicted", _traffic(foot, disk.evicted_blocks)
    yield "refused", _traffic(foot, disk.refused_blocks)


def _beside_cells(run: CacheCounts, observed: ObservedRatios, *, has_disk: bool) -> Iterator[tuple[str, str]]:
    """The cells that compare a row's hits with those that the trace's own server counted, of the same requests."""
    setup, foot, beside = run.setup, run.footprint, run.beside
    yield "policy", setup.policy
    yield "memory", size_shown(foot, setup.capacity)
    if has_disk:
        yield "disk", size_shown(foot, setup.disk)
    yield "token", _share(None if beside is None else beside.token)
    yield "it had", _share(observed.token)
    if observed.loaded_token:
        yield "GPU token", _share(None if beside is None else beside.gpu_token)
        yield "it had", _share(observed.gpu_token)
        yield "loaded token", _share(None if beside is None else beside.loaded_token)
        yield "it had", _share(observed.loaded_token)
    yield "apart", _share(None if beside is None else beside.apart)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def size_lines(found: Sizing, model: str | None) -> Iterator[str]:
    """The table of ``size``, the recommendation and the configuration."""
    yield from trace_lines(found, model)
    if found.gpu_blocks:
        yield f"the GPU's prefix cache alone ({blocks_shown(found.gpu_blocks)}): {ratios_shown(found.gpu_alone)}"
    if found.store_when is StoreWhen.EVICTED:
        yield f"  {STORED_WHEN_EVICTED}"
    if found.disk is not None and found.disk.host_blocks:
        beside = " and the GPU's prefix cache" if found.gpu_blocks else ""
        size = size_shown(found.footprint, found.disk.host_blocks)
        yield f"host memory ({size}){beside}, without the disk: {ratios_shown(found.without)}"
    yield ""
    yield f"hits by prompt tokens{'' if found.load is None else ', over all servers; sizes are per server'}:"
    yield from aligned(_size_rows(found))
    yield ""
    yield from _recommendation(found)


def _size_rows(found: Sizing) -> list[list[str]]:
    foot = found.footprint
    per = "+1 GiB" if foot.block_bytes else "+1M tokens"
    room = "memory" if found.disk is None else "disk"
    rows = [["blocks", "tokens", room, *found.policies, "MIN", per, ""]]
    for index, (size, gain) in enumerate(zip(found.capacities, found.gains(), strict=True)):
        scale = 2**30 / foot.block_bytes if foot.block_bytes else 1e6 / foot.block_tokens
        row = [f"{size:,}", show_count(size * foot.block_tokens), _bytes(foot, size)]
        row += [f"{curve[index].token:.3f}" for curve in found.curves.values()]
        row += [f"{found.best[index].token:.3f}", gain_shown(100 * gain * scale)]
        is_here = size == found.recommended.capacity and found.is_worth_it
        rows.append([*row, "◀ here" if is_here else ""])
    return rows


def _recommendation(found: Sizing) -> Iterator[str]:
    chosen, foot = found.recommended, found.footprint
    if not found.is_worth_it:
        yield f"recommended: no {nothing_more(found)}"
        yield f"  {found.reason}"
        yield from _if_evicted(found)
        return
    size = foot.bytes_of(chosen.capacity)
    memory = f" = {show_bytes(size)}" if size is not None else ""
    on_disk = "" if found.disk is None else " of disk"
    tokens = chosen.capacity * foot.block_tokens
    much = f"{blocks_shown(chosen.capacity)} = {show_count(tokens)} tokens{memory}{on_disk}{on_each(found)}"
    yield f"recommended: {chosen.policy}, {much}"
    yield f"  {found.reason}"
    yield f"  hits {ratios_shown(chosen.ratios)}"
    yield from _if_evicted(found)
    config = found.config()
    if config is None:
        yield "  for GiB and a configuration to paste: --model NAME or --bytes-per-token SIZE"
    else:
        numbers = engines_told_apart(found)
        if numbers is not None:
            yield f"  {numbers}"
        yield as_argument(config)


def _if_evicted(found: Sizing) -> Iterator[str]:
    """What ``--store-when evicted`` would gain, if that is worth mentioning."""
    late = found.if_evicted
    if late is not None and found.gains_if_evicted:
        much = f"{late.policy}, {blocks_shown(late.capacity)}"
        yield f"  with --store-when evicted {much} would hit {late.ratios.token:.3f} of tokens"


def _bytes(foot: Footprint, blocks: int) -> str:
    size = foot.bytes_of(blocks)
    return "-" if size is None else show_bytes(size)


def _traffic(foot: Footprint, blocks: int) -> str:
    return show_count(blocks) if foot.block_bytes is None or not blocks else _bytes(foot, blocks)
