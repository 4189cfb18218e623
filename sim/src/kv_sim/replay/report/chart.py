"""Charts as inline SVG: lines over a logarithmic axis, areas over time, bars. The page's style gives the colours.

Each chart is drawn twice, for wide and for narrow screens, and the page shows the one that fits: a chart that is
only scaled down can't be read.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Final

WIDE: Final = (880, 400)
NARROW: Final = (420, 340)
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 14, 46


@dataclass(frozen=True)
class Line:
    """A curve: its class in the page's style, its name, its points."""

    style: str
    name: str
    points: Sequence[tuple[float, float]]
    has_dots: bool = True


@dataclass(frozen=True)
class Mark:
    """A point that is marked, with a label."""

    x: float
    y: float
    text: str


def both_sizes(draw: Callable[[int, int], str]) -> str:
    """A chart for wide and for narrow screens."""
    wide, narrow = draw(*WIDE), draw(*NARROW)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def log_chart(
    lines: Sequence[Line], title: str, x_title: str, show_x: Callable[[float], str], mark: Mark | None = None
) -> str:
    """Ratios over capacities on a logarithmic axis."""
    xs = [x for line in lines for x, _ in line.points]
    least, most = min(xs), max(xs)
    low = log10(least)
    span = log10(most) - low or 1.0
    top = _nice_top(max(y for line in lines for _, y in line.points))

    def draw(width: int, height: int) -> str:
        plot = _Plot(width, height, top)

        def at(x: float) -> float:
            return plot.x((log10(x) - low) / span)

        body = [*plot.y_axis(_percent)]
        body += plot.x_axis([(at(tick), show_x(tick)) for tick in _log_ticks(least, most, width)], x_title)
        if mark is not None:
            body += plot.mark(at(mark.x), mark.y, mark.text)
        for line in lines:
            body += plot.line(line, at, show_x)
        return plot.svg(title, body)

    return both_sizes(draw)


def series_chart(
    layers: Sequence[tuple[str, str, Sequence[float]]],
    over: tuple[str, Sequence[float]],
    title: str,
    end: float,
    unit: str,
) -> str:
    """Shares over time: stacked areas, and a line over them."""
    top = _nice_top(max([*over[1], 0.01]))

    def draw(width: int, height: int) -> str:
        plot = _Plot(width, int(height * 0.7), top)
        count = len(over[1])
        places = [plot.x((index + 0.5) / count) for index in range(count)]
        body = [*plot.y_axis(_percent)]
        body += plot.x_axis([(plot.x(tick / end), f"{tick:g}") for tick in _even_ticks(end)], unit)
        below = [0.0] * count
        for style, name, values in layers:
            above = [low + value for low, value in zip(below, values, strict=True)]
            body.append(plot.area(style, name, places, below, above))
            below = above
        pairs = " ".join(f"{x:.1f},{plot.y(y):.1f}" for x, y in zip(places, over[1], strict=True))
        body.append(f'<polyline class="line bound" points="{pairs}"><title>{escape(over[0])}</title></polyline>')
        return plot.svg(title, body)

    return both_sizes(draw)


def bar_chart(bars: Sequence[tuple[str, float]], title: str, x_title: str) -> str:
    """Shares of a few classes."""
    top = _nice_top(max([value for _, value in bars] + [0.01]))

    def draw(width: int, height: int) -> str:
        plot = _Plot(width, int(height * 0.7), top)
        step = 1 / len(bars)
        body = [*plot.y_axis(_percent)]
        every = 1 if width > NARROW[0] else 2
        ticks = [(plot.x((index + 0.5) * step), name) for index, (name, _) in enumerate(bars)]
        body += plot.x_axis(ticks[::every], x_title)
        for index, (name, value) in enumerate(bars):
            left, right = plot.x((index + 0.12) * step), plot.x((index + 0.88) * step)
            y = plot.y(value)
            body.append(
                f'<rect class="bar" x="{left:.1f}" y="{y:.1f}" width="{right - left:.1f}" '
                f'height="{plot.y(0) - y:.1f}" rx="2"><title>{escape(name)}: {value:.1%}</title></rect>'
            )
        return plot.svg(title, body)

    return both_sizes(draw)


class _Plot:
    """The frame of one chart, which turns shares of its sides into coordinates."""

    def __init__(self, width: int, height: int, top: float) -> None:
        self._width, self._height, self._top = width, height, top

    def x(self, share: float) -> float:
        return _LEFT + share * (self._width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self._height - _BOTTOM - value / self._top * (self._height - _TOP - _BOTTOM)

    def svg(self, title: str, body: Sequence[str]) -> str:
        head = f'<svg viewBox="0 0 {self._width} {self._height}" role="img" aria-label="{escape(title)}">'
        return "\n".join([head, *body, "</svg>"])

    def y_axis(self, show: Callable[[float], str]) -> Iterator[str]:
        for part in range(6):
            value = self._top * part / 5
            y = self.y(value)
            yield f'<line class="grid" x1="{_LEFT}" x2="{self._width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{show(value)}</text>'

    def x_axis(self, ticks: Sequence[tuple[float, str]], title: str) -> Iterator[str]:
        base, bottom, middle = self._height - _BOTTOM, self._height - 6, self.x(0.5)
        for x, text in ticks:
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 5}"/>'
            yield f'<text class="tick" x="{x:.1f}" y="{base + 18}" text-anchor="middle">{escape(text)}</text>'
        yield f'<text class="axis" x="{middle:.1f}" y="{bottom}" text-anchor="middle">{escape(title)}</text>'

    def line(self, line: Line, at: Callable[[float], float], show_x: Callable[[float], str]) -> Iterator[str]:
        pairs = " ".join(f"{at(x):.1f},{self.y(y):.1f}" for x, y in line.points)
        yield f'<polyline class="line {line.style}" points="{pairs}"/>'
        for x, y in line.points if line.has_dots else ():
            text = escape(f"{line.name}, {show_x(x)}: {y:.1%}")
            yield (
                f'<circle class="dot {line.style}" cx="{at(x):.1f}" cy="{self.y(y):.1f}" r="3">'
                f"<title>{text}</title></circle>"
            )

    def mark(self, x: float, value: float, text: str) -> Iterator[str]:
        y, base = self.y(value), self._height - _BOTTOM
        is_right = x > self._width * 0.6
        anchor, side = ("end", x - 10) if is_right else ("start", x + 10)
        yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{base}"/>'
        yield f'<circle class="halo" cx="{x:.1f}" cy="{y:.1f}" r="8"/>'
        yield f'<text class="marked" x="{side:.1f}" y="{base - 12}" text-anchor="{anchor}">{escape(text)}</text>'

    def area(
        self, style: str, name: str, places: Sequence[float], below: Sequence[float], above: Sequence[float]
    ) -> str:
        there = [f"{x:.1f},{self.y(y):.1f}" for x, y in zip(places, above, strict=True)]
        back = [f"{x:.1f},{self.y(y):.1f}" for x, y in zip(places, below, strict=True)]
        points = " ".join([*there, *reversed(back)])
        return f'<polygon class="area {style}" points="{points}"><title>{escape(name)}</title></polygon>'


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _nice_top(value: float) -> float:
    """The top of an axis with five steps, all of them round numbers."""
    step = max(value, 1e-6) / 5
    power = 10.0 ** floor(log10(step))
    nice = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    return 5 * power * next(number for number in nice if number * power >= step * 0.999)


def _even_ticks(end: float) -> list[float]:
    """Four to eight round steps from 0 to ``end``."""
    power = 10.0 ** floor(log10(end / 4))
    step = max(nice * power for nice in (1, 2, 2.5, 5) if 4 * nice * power <= end)
    return [step * index for index in range(int(end / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, width: int) -> list[float]:
    """Powers of ten, or finer steps if these are too few, and no more than there is room for."""
    ticks: list[float] = []
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        if len(ticks) < 3:
            ticks = [digit * 10.0**power for power in powers for digit in digits]
            ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    room = width // 90
    return ticks[:: -(-len(ticks) // room)] if ticks else [low]
