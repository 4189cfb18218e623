"""Print what becomes of every planted bug: ``python -m kv_sim.zoo [name …]``.

For each: who caught it first, after how many histories and how long, how many actions are left after shrinking
and how long that took, and who catches it when the expected checker is switched off. Exits with 1 if one was not
found.
"""

import sys
from collections.abc import Sequence
from statistics import median
from time import perf_counter

from kv_api.errors import unknown_name
from kv_sim.shrink import shrink
from kv_sim.zoo.hunt import HISTORIES, PATIENCE, hunt, killers
from kv_sim.zoo.planted import Planted
from kv_sim.zoo.registry import PLANTED

ROW = "{:20} {:16} {:12} {:12} {:>9} {:>8} {:>7} {:>8}  {}"


def main(names: Sequence[str]) -> int:
    """Hunt for some of them, or for all."""
    known = {planted.name: planted for planted in PLANTED}
    for name in names:
        if name not in known:
            print(unknown_name("planted bug", name, known))
            return 2
    print(ROW.format("bug", "issue", "expected", "caught by", "histories", "found", "actions", "shrunk", "else"))
    results = [_hunt(planted) for planted in PLANTED if not names or planted.name in names]
    found = [result for result in results if result is not None]
    if found:
        actions, seconds = (median(values) for values in zip(*found, strict=True))
        print(f"{len(found)} of {len(results)} found; median {actions:g} actions, shrunk in {seconds:.2f} s")
    return int(len(found) < len(results))


def _hunt(planted: Planted) -> tuple[int, float] | None:
    """Hunt for one and print its row. Returns the actions that are left and the seconds of shrinking."""
    start = perf_counter()
    histories, failure = hunt(planted.subject, range(PATIENCE))
    found = perf_counter()
    if failure is None:
        print(ROW.format(planted.name, planted.issue, planted.invariant, "nobody", histories, "", "", "", ""))
        return None
    short = shrink(failure)
    shrunk = perf_counter()
    others = killers(planted.subject, range(HISTORIES), frozenset({planted.invariant}))
    print(
        ROW.format(
            planted.name,
            planted.issue,
            planted.invariant,
            failure.violation.invariant,
            histories,
            f"{found - start:.2f} s",
            len(short.history),
            f"{shrunk - found:.2f} s",
            ", ".join(sorted(others)) or f"survives {HISTORIES}",
        ),
        flush=True,
    )
    return len(short.history), shrunk - found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
