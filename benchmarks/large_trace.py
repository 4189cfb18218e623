"""What each part of a sizing takes of a large trace, which is made up: chats behind shared system prompts.

Prints processor time, once, and the most memory that the process had.

    python benchmarks/large_trace.py [--requests 200000]
"""

from __future__ import annotations

import argparse
import resource
from itertools import count
from random import Random

from replay import best_of, curve_of, take_turns, with_statistics

from kv_sim.console.table import aligned
from kv_sim.replay import Columns
from kv_sim.replay.caches.shape import shape_of
from kv_sim.replay.columns import ColumnsBuilder
from kv_sim.replay.sizing.capacities import usual_capacities


def chats(requests: int) -> Columns:
    """A trace made up: 400 chats at a time, of about four turns, each behind one of 40 system prompts."""
    random, builder, under_way = Random(0), ColumnsBuilder(), list[list[int]]()
    fresh = count(40 * 8)
    for number in range(requests):
        if len(under_way) < 400 or random.random() < 0.25:
            which = min(int(random.expovariate(0.2)), 39)
            under_way.append([*range(8 * which, 8 * which + 1 + which % 8)])
            place = len(under_way) - 1
        else:
            place = random.randrange(len(under_way))
        ids = under_way[place]
        ids += [next(fresh) for _ in range(1 + int(random.expovariate(0.2)))]
        builder.add(number / 30, 512 * len(ids), 200, ids)
        if random.random() < 0.25:
            under_way.pop(place)
    return builder.finish(f"{requests:,} requests of chats", 512)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What each part of a sizing takes of a large trace.")
    parser.add_argument("--requests", type=int, default=200_000, metavar="N")
    columns = chats(parser.parse_args().requests)
    sizes = usual_capacities(shape_of(columns).unique_blocks, 20)
    works = {
        "shape": lambda: shape_of(columns),
        "replay with statistics": lambda: with_statistics(columns, sizes[10]),
        "LRU curve of 20": lambda: curve_of(columns, sizes),
        "MIN at 20": lambda: best_of(columns, sizes),
    }
    rows = [["", "seconds", "M references/s"]]
    for name, seconds in take_turns(1, works).items():
        rows.append([name, f"{seconds:.2f}", f"{columns.references / seconds / 1e6:.2f}"])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{columns.name}, {columns.references:,} references; at most {most:.0f} MiB")
    print(*aligned(rows), sep="\n")


if __name__ == "__main__":
    main()
