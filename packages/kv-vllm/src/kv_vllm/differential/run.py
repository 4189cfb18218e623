"""The differential: plays histories of the testbed's engine to vLLM's schedulers, and compares their calls.

For each cell of the matrix and each subject, every seed's world is run on the engine model, and its trace is
recorded and played to vLLM. The two engines agree on a history if vLLM makes the same calls in the same order with
the same arguments, block ids included. A cell passes if all compared histories agree and every situation occurred
often enough.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.history.draws import config_for
from kv_sim.subject import Subject
from kv_vllm.differential.comparison import Divergence, Follower, Script, follow
from kv_vllm.differential.matrix import EXCLUSIONS, Cell, exclusion_of, hidden
from kv_vllm.differential.recorder import record
from kv_vllm.differential.situations import MINIMA, situations_of, wanted
from kv_vllm.differential.trace import Trace

USUAL_SUBJECTS: Final = ("later", "patient", "memory")
ACTIONS: Final = 150
"""Actions of a history."""

MakeFollower = Callable[[WorldConfig, Trace, Script], Follower]


@dataclass
class CellResult:
    """The result of one cell."""

    cell: Cell
    agree: int = 0
    """Histories that agree, some only up to the begin of an exclusion."""
    calls: int = 0
    diverging: list[tuple[str, int, WorldConfig, Divergence]] = field(default_factory=list)
    """Subject, seed, world and difference of each history that diverges."""
    excluded: Counter[str] = field(default_factory=Counter)
    cut_short: list[str] = field(default_factory=list)
    """Histories that a checker ended, which ``kv-sim fuzz`` looks into. The turns before that are compared."""
    situations: Counter[str] = field(default_factory=Counter)


def run_cell(
    cell: Cell,
    subjects: Mapping[str, Subject],
    seeds: Iterable[int],
    make_follower: MakeFollower,
    version: tuple[int, int],
) -> CellResult:
    """Compare every seed's history of every subject."""
    result = CellResult(cell)
    seeds = tuple(seeds)
    for name, subject in subjects.items():
        for seed in seeds:
            random = Random(seed)
            config = cell.world(config_for(subject, random), subject)
            trace = record(subject, config, random, ACTIONS)
            if (found := exclusion_of(config, trace, version)) is not None:
                exclusion, begins = found
                result.excluded[exclusion.name] += 1
                del trace.turns[begins:]
                if not begins:
                    continue
            if trace.cut_short_by is not None:
                result.cut_short.append(f"{name}, seed {seed}: {trace.cut_short_by}")
            script = Script()
            divergence = follow(trace.turns, make_follower(config, trace, script), script)
            if divergence is not None:
                result.diverging.append((name, seed, config, divergence))
                continue
            result.agree += 1
            result.calls += sum(len(turn.calls) for turn in trace.turns)
            result.situations += situations_of(trace, config)
    return result


def differential(
    cells: Sequence[Cell],
    subject_names: Sequence[str],
    seeds: range,
    make_follower: MakeFollower,
    version: tuple[int, int],
    show: Callable[[str], None],
) -> bool:
    """Run the cells and show their results. True: all histories agree, and every situation occurred often enough.

    The minima are for the default subjects together: one alone doesn't lead to every situation.
    """
    subjects = {name: SUBJECTS[name] for name in subject_names}
    show(f"vLLM {version[0]}.{version[1]}; a cell: {len(seeds)} histories of each of {', '.join(subjects)}")
    results = []
    for cell in cells:
        result = run_cell(cell, subjects, seeds, make_follower, version)
        results.append(result)
        show_cell(result, show)
    asked = set(USUAL_SUBJECTS) <= set(subjects)
    least = {name: count for name, count in wanted(len(seeds)).items() if asked and name not in hidden(version)}
    show_situations(results, least, show)
    used = {name for result in results for name in result.excluded}
    for exclusion in EXCLUSIONS:
        if exclusion.name in used:
            show(f"excluded: {exclusion.name}\n  {exclusion.reason}")
    return all(not r.diverging and not missed(r.situations, least) for r in results)


def missed(counts: Mapping[str, int], least: Mapping[str, int]) -> list[str]:
    """The situations that occurred too rarely."""
    return [name for name, count in least.items() if counts.get(name, 0) < count]


def show_cell(result: CellResult, show: Callable[[str], None]) -> None:
    """One line, and the first divergence."""
    total = result.agree + len(result.diverging)
    show(f"{result.cell}: {result.agree} of {total} histories agree, in {result.calls} calls")
    for name, count in sorted(result.excluded.items()):
        show(f"  {count} excluded: {name}")
    for line in result.cut_short:
        show(f"  cut short: {line}")
    if result.diverging:
        name, seed, config, divergence = result.diverging[0]
        show(f"  diverging: {', '.join(f'{n} {s}' for n, s, _, _ in result.diverging[:12])}")
        show(f"  the first: {name}, seed {seed}, {config.to_json()}")
        show("\n".join(f"    {line}" for line in str(divergence).splitlines()))


def show_situations(results: Sequence[CellResult], least: Mapping[str, int], show: Callable[[str], None]) -> None:
    """How often each situation occurred in the histories that agree, a column for each cell."""
    width = max(map(len, MINIMA))
    heads = [f"{'async' if r.cell.async_scheduling else 'sync'}, runner {r.cell.runner}" for r in results]
    show(f"{'situation':{width}}  {'least':>6}  " + "  ".join(f"{head:>15}" for head in heads))
    for name in MINIMA:
        count = least.get(name, 0)
        cells = [f"{r.situations[name]}{' !' if r.situations[name] < count else ''}" for r in results]
        show(f"{name:{width}}  {count or '-':>6}  " + "  ".join(f"{cell:>15}" for cell in cells))
    for result in results:
        for name in missed(result.situations, least):
            show(f"missed: {name!r} in {result.cell}: {result.situations[name]} of {least[name]} times")
