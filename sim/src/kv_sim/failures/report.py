"""The report of a failure: the violation, the few actions that cause it, and two commands to paste.

FAIL seed=8123 actions=61  CONTENT  request r4 token 8: rank 0 block 9 holds zeroes, last written by …
shrunk to 2 actions
    1 add      r4: 9 tokens of conversation 0, samples 1 of at most 1
    2 step
replay: kv-sim fuzz --connector later --seed 8123 --log
shrunk: kv-sim replay-schedule fail-later-8123.jsonl
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kv_sim.actions import USUAL_ACTIONS, Action
from kv_sim.config import BUILTIN_ENGINE
from kv_sim.fuzz import Failure
from kv_sim.subject import PEERS, SHARES
from kv_sim.violation import Invariant
from kv_sim.watching.describe import describe

MOST_ACTIONS: Final = 12


def fail_line(found: Failure) -> str:
    """The line of the violation."""
    return f"FAIL seed={found.seed} actions={len(found.history)}  {found.violation}"


def shrunk_lines(found: Failure, shrunk: Failure, replay_line: str, file: Path | None) -> list[str]:
    """The history that is left, and the commands to paste. No file: it was not saved.

    If shrinking had nothing to begin with, ``shrunk`` is ``found`` itself, and isn't called shrunk.
    """
    count = len(shrunk.history)
    head, name = ("", "saved") if shrunk is found else ("shrunk to ", "shrunk")
    head += f"{count} action{'s' if count != 1 else ''}"
    if str(shrunk.violation) != str(found.violation):
        head += f"  {shrunk.violation}"
    lines = [head, *action_lines(shrunk.history), f"replay: {replay_line}"]
    if file is not None:
        lines.append(f"{name}: {shlex.join(['kv-sim', 'replay-schedule', str(file)])}")
    return lines


def action_lines(history: Sequence[Action]) -> list[str]:
    """The last actions, with the numbers that they have in a log and in a schedule file."""
    numbered = list(enumerate(history, 1))
    left_out = len(numbered) - MOST_ACTIONS
    lines = [f"    … {left_out} before"] if left_out > 0 else []
    return lines + [f"  {number:3} {describe(action)}".rstrip() for number, action in numbered[-MOST_ACTIONS:]]


def replay_line(
    name: str,
    seed: int,
    *,
    extra: str | None = None,
    traits: str | None = None,
    serves_peers: int | None = None,
    shares_store: bool | None = None,
    engine: str = BUILTIN_ENGINE,
    actions: int = USUAL_ACTIONS,
    without: frozenset[Invariant] = frozenset(),
) -> str:
    """The command that runs one seed again, with its log."""
    words = ["kv-sim", "fuzz", "--connector", name]
    for option, value in (("--extra", extra), ("--traits", traits)):
        if value is not None:
            words += [option, value]
    words += [PEERS[serves_peers]] if serves_peers else []
    words += [SHARES] if shares_store else []
    if engine != BUILTIN_ENGINE:
        words += ["--engine", engine]
    words += ["--seed", str(seed)]
    if actions != USUAL_ACTIONS:
        words += ["--actions", str(actions)]
    if without:
        words += ["--without", ",".join(sorted(without))]
    return shlex.join([*words, "--log"])


def file_stem(name: str, seed: int | None) -> str:
    """The name of a failure's schedule file, without its suffix."""
    return f"fail-{re.sub(r'[^A-Za-z0-9_.+-]', '_', name)}-{seed}"
