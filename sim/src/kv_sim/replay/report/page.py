"""The report as one page: everything inline, so that it opens from disk and can be mailed."""

from collections.abc import Iterator, Sequence
from html import escape

from kv_offload import StoreWhen
from kv_sim.replay.caches.tally import AGE_EDGES_SECONDS
from kv_sim.replay.hit_rates.results import CacheReplay, Replays
from kv_sim.replay.report.chart import Line, Mark, bar_chart, log_chart, series_chart
from kv_sim.replay.report.phrases import (
    DISK_SHARED,
    STORED_WHEN_EVICTED,
    engines_told_apart,
    gain_shown,
    nothing_more,
    on_each,
    show_seconds,
    size_shown,
)
from kv_sim.replay.report.style import STYLE
from kv_sim.replay.sizing.capacities import Sizing
from kv_sim.replay.sizing.transfer_config import as_argument
from kv_sim.replay.units import Footprint, show_bytes, show_count

_COLOURS = 5


def size_page(found: Sizing, model: str | None, recommended: CacheReplay) -> str:
    """The page of ``size``; ``recommended`` is a replay of its recommended point."""
    parts = [*_head(found, model), _answer(found), _curves_of_sizing(found), *_details(recommended)]
    return _page(f"{found.trace}: how much {_what(found)}", [*parts, _size_table(found)])


def replay_page(found: Replays, model: str | None) -> str:
    """The page of ``replay``; its charts over time are of the run with the most hits."""
    best = max(found.runs, key=lambda run: run.both.token)
    parts = [*_head(found, model), *_curves_of_runs(found), *_details(best), _replay_table(found)]
    return _page(f"{found.trace}: replay", parts)


def _page(title: str, parts: Sequence[str]) -> str:
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
            *parts,
            "</main></body></html>\n",
        ]
    )


def _head(found: Replays | Sizing, model: str | None) -> Iterator[str]:
    totals, infinite = found.totals, found.infinite
    facts = {
        "requests": f"{found.requests:,}",
        "time": show_seconds(found.duration_seconds),
        "prompt tokens": show_count(totals.tokens),
        f"blocks of {totals.block_tokens} tokens": f"{totals.blocks:,}",
        "different blocks": f"{found.unique_blocks:,}",
        "reusable tokens": f"{infinite.token:.1%}",
    }
    if found.observed is not None:
        facts["its own server had"] = f"{found.observed.token:.1%}"
    if found.load is not None:
        facts |= {"servers": f"{found.load.servers}", "reusable on one": f"{found.infinite_shared.token:.1%}"}
    yield f"<header><h1>{escape(found.trace)}</h1>"
    yield '<p class="soft">What a cache for KV would have answered.</p><dl class="facts">'
    yield "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    notes = [*found.notes, *([model] if model else [])]
    sized = found if isinstance(found, Sizing) else found.runs[0].setup
    if sized.store_when is StoreWhen.EVICTED:
        notes.append(STORED_WHEN_EVICTED)
    if found.load is not None:
        notes.append(f"{found.load}. Sizes are per server.")
    if found.disk_shared:
        notes.append(DISK_SHARED)
    if found.observed is not None:
        notes.append(str(found.observed))
    yield f'</dl><ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul></header>'


def _answer(found: Sizing) -> str:
    chosen, foot = found.recommended, found.footprint
    reason = f'<p class="soft">{escape(found.reason[0].upper() + found.reason[1:])}.</p>'
    late = found.if_evicted
    if late is not None and found.gains_if_evicted:
        much = f"{late.policy}, {late.capacity:,} blocks"
        reason += (
            f"<p>With <code>--store-when evicted</code> {escape(much)} answer <b>{late.ratios.token:.1%}</b>.</p>"
        )
    if not found.is_worth_it:
        big = f"No {nothing_more(found)}"
        return f'<section class="answer"><h2>Recommended</h2><p class="big">{escape(big)}</p>{reason}</section>'
    size, config = foot.bytes_of(chosen.capacity), found.config()
    tokens = f"{show_count(chosen.capacity * foot.block_tokens)} tokens"
    what = _what(found)
    big = f"{show_bytes(size)} of {what}" if size is not None else f"{tokens} in {found.medium}"
    big += on_each(found)
    ratios = chosen.ratios
    numbers = engines_told_apart(found)
    besides = "" if numbers is None else f'<p class="soft">{escape(numbers[0].upper() + numbers[1:])}.</p>'
    code = (
        f"<pre>{escape(as_argument(config), quote=False)}</pre>{besides}"
        if config is not None
        else '<p class="soft">For GiB and a configuration to paste: --model NAME or --bytes-per-token SIZE.</p>'
    )
    return (
        '<section class="answer"><h2>Recommended</h2>'
        f'<p class="big">{escape(big)}, policy {escape(chosen.policy)}</p>'
        f"<p>{tokens} in {chosen.capacity:,} blocks answer <b>{ratios.token:.1%}</b> of prompt tokens "
        f"({ratios.block:.1%} of blocks, {ratios.full_block:.1%} of full blocks). A cache without end: "
        f"{found.most_possible.token:.1%}.</p>{reason}{code}</section>"
    )


def _curves_of_sizing(found: Sizing) -> str:
    capacities, chosen = found.capacities, found.recommended
    lines = [
        Line(f"c{index % _COLOURS}", name, [(size, r.token) for size, r in zip(capacities, curve, strict=True)])
        for index, (name, curve) in enumerate(found.curves.items())
    ]
    lines += _bounds(capacities, [ratios.token for ratios in found.best], found.most_possible.token)
    mark = Mark(
        chosen.capacity, chosen.ratios.token, f"{size_shown(found.footprint, chosen.capacity)}, {chosen.policy}"
    )
    shown = mark if len(capacities) > 1 and found.is_worth_it else None
    return _curves(lines, found.footprint, shown, _what(found))


def _curves_of_runs(found: Replays) -> Iterator[str]:
    """Curves over the sizes of host memory; or over those of the disk, if host memory has only one size."""
    sizes, disks = ({getattr(run.setup, name) for run in found.runs} for name in ("capacity", "disk"))
    x, what = ("disk", "disk") if len(sizes) < 2 else ("capacity", "host memory")
    if len(sizes) < 2 and len(disks) < 2:
        return
    by_name: dict[str, list[tuple[float, float]]] = {}
    best: dict[int, float] = {}
    for run in found.runs:
        size = getattr(run.setup, x)
        several = x == "capacity" and len(disks) > 1
        behind = f", {size_shown(run.footprint, run.setup.disk)} of disk" if several else ""
        by_name.setdefault(run.setup.policy + behind, []).append((size, run.both.token))
        best[size] = max(best.get(size, 0.0), run.best.token)
    lines = [
        Line(f"c{index % _COLOURS}", name, sorted(points)) for index, (name, points) in enumerate(by_name.items())
    ]
    lines += _bounds(sorted(best), [best[size] for size in sorted(best)], found.most_possible.token)
    yield _curves(lines, found.runs[0].footprint, None, what)


def _bounds(sizes: Sequence[int], best: Sequence[float], infinite: float) -> list[Line]:
    ends = [(sizes[0], infinite), (sizes[-1], infinite)]
    return [
        Line("bound", "MIN, the most possible", list(zip(sizes, best, strict=True)), has_dots=False),
        Line("infinite", "infinite cache", ends, has_dots=False),
    ]


def _curves(lines: Sequence[Line], foot: Footprint, mark: Mark | None, what: str) -> str:
    title = "Prompt tokens answered, by capacity"
    unit = what if foot.block_bytes is not None else "capacity in tokens"
    # The axis is in the shown unit, so that ticks are at its round numbers.
    scale = foot.block_bytes / 2**30 if foot.block_bytes is not None else float(foot.block_tokens)
    scaled = [Line(x.style, x.name, [(size * scale, y) for size, y in x.points], x.has_dots) for x in lines]
    placed = None if mark is None else Mark(mark.x * scale, mark.y, mark.text)
    show = (lambda x: show_bytes(int(x * 2**30))) if foot.block_bytes is not None else show_count
    chart = log_chart(scaled, title, f"{unit} (logarithmic)", show, placed)
    return f"<section><h2>{title}</h2>{_legend([(x.style, x.name) for x in lines])}{chart}</section>"


def _details(run: CacheReplay) -> Iterator[str]:
    setup, foot = run.setup, run.footprint
    behind = f", {size_shown(foot, setup.disk)} of disk" if setup.disk else ""
    what = f"{setup.policy}, {size_shown(foot, setup.capacity)}{behind}"
    series = run.series
    end = series[1].begin_seconds * len(series)
    scale, unit = (60.0, "minutes") if end < 14_400 else (3600.0, "hours")
    layers = [("c0", "host memory", [one.cpu_hits / max(1, one.blocks) for one in series])]
    if setup.disk:
        own = [(one.disk_hits - one.borrowed_hits) / max(1, one.blocks) for one in series]
        layers.append(("c1", "disk", own))
    if run.disk.borrowed_blocks:
        layers.append(("c3", "neighbours' disks", [one.borrowed_hits / max(1, one.blocks) for one in series]))
    if setup.gpu_blocks:
        layers.insert(0, ("c2", "GPU", [one.gpu_hits / max(1, one.blocks) for one in series]))
    over = ("infinite cache", [one.reusable / max(1, one.blocks) for one in series])
    chart = series_chart(layers, over, "blocks answered over time", end / scale, f"{unit} of the trace")
    legend = _legend([*((style, name) for style, name, _ in layers), ("bound", "infinite cache")])
    yield f'<section><h2>Blocks answered over time</h2><p class="soft">{escape(what)}</p>{legend}{chart}</section>'
    total = sum(run.ages.counts) or 1
    names = [f"< {show_seconds(edge)}" for edge in AGE_EDGES_SECONDS] + ["older"]
    bars = [(name, count / total) for name, count in zip(names, run.ages.counts, strict=True)]
    last = max((index for index, (_, share) in enumerate(bars) if share), default=0)
    chart = bar_chart(bars[: last + 1], "age of what was answered", "time since the block was last used")
    ages = run.ages
    text = (
        f"Half of them younger than {show_seconds(ages.p50_seconds)}, 99 % than {show_seconds(ages.p99_seconds)}."
    )
    answered = "host memory and the disk" if setup.disk else "host memory"
    yield f'<section><h2>Age of what {answered} answered</h2><p class="soft">{text}</p>{chart}</section>'


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    sample = (
        '<svg viewBox="0 0 26 10" aria-hidden="true"><line class="line {}" x1="1" x2="25" y1="5" y2="5"/></svg>'
    )
    items = (f"<li>{sample.format(style)}{escape(name)}</li>" for style, name in entries)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _size_table(found: Sizing) -> str:
    foot = found.footprint
    gain = "+1 GiB" if foot.block_bytes else "+1M tokens"
    scale = 2**30 / foot.block_bytes if foot.block_bytes else 1e6 / foot.block_tokens
    head = ["capacity", "tokens", *found.policies, "MIN", gain]
    rows = []
    for index, (size, step) in enumerate(zip(found.capacities, found.gains(), strict=True)):
        cells = [size_shown(foot, size), show_count(size * foot.block_tokens)]
        cells += [f"{curve[index].token:.1%}" for curve in found.curves.values()]
        rows.append([*cells, f"{found.best[index].token:.1%}", gain_shown(100 * step * scale)])
    here = found.capacities.index(found.recommended.capacity)
    return _table("Hits by prompt tokens", head, rows, here)


def _replay_table(found: Replays) -> str:
    head = ["policy", "capacity", "tokens", "blocks hit", "tokens hit", "full blocks hit", "by GPU", "MIN"]
    head += ["loaded", "stored", "evicted", "refused"]
    has_disk = any(run.setup.disk for run in found.runs)
    if has_disk:
        head += ["disk", "by disk", "loaded from it", "stored", "evicted", "refused"]
    if found.disk_shared:
        head += ["by neighbours", "borrowed"]
    if found.observed is not None:
        head += ["apart from its own server"]
    rows = []
    for run in found.runs:
        foot, both, disk = run.footprint, run.both, run.disk
        cells = [run.setup.policy, size_shown(foot, run.setup.capacity)]
        cells.append(show_count(run.setup.capacity * foot.block_tokens))
        cells += [
            f"{value:.1%}" for value in (both.block, both.token, both.full_block, run.gpu.token, run.best.token)
        ]
        moved = [run.loaded_blocks, run.stored_blocks, run.evicted_blocks, run.refused_blocks]
        cells += [size_shown(foot, count) for count in moved]
        if has_disk:
            moved = [disk.loaded_blocks, disk.stored_blocks, disk.evicted_blocks, disk.refused_blocks]
            cells += [size_shown(foot, run.setup.disk), f"{disk.ratios.token:.1%}"]
            cells += [size_shown(foot, count) for count in moved]
        if found.disk_shared:
            cells += [f"{disk.neighbours.token:.1%}", size_shown(foot, disk.borrowed_blocks)]
        if found.observed is not None:
            cells.append("-" if run.beside is None else f"{run.beside.apart:.1%}")
        rows.append(cells)
    return _table("All runs", head, rows, None)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], here: int | None) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = []
    for index, row in enumerate(rows):
        style = ' class="here"' if index == here else ""
        body.append(f"<tr{style}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>")
    return (
        f'<section><h2>{escape(title)}</h2><div class="scroll"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div></section>"
    )


def _what(found: Sizing) -> str:
    return "host memory" if found.disk is None else "disk"
