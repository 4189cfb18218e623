"""One table of what was measured of each subject, with a connector's share: what is added where there is none."""

from __future__ import annotations

from collections.abc import Mapping

from steps.server import VLLM_VERSION
from steps.situations import GOALS, SUBJECTS


def show(unit: str, rows: Mapping[str, Mapping[str, float]], *, decimals: int) -> None:
    """Print a line for each situation; ``rows`` has the numbers of its subjects."""
    print(f"vLLM {VLLM_VERSION}, {unit}; share: what is added to a scheduler without a connector")
    print(f"{'':26} {'none':>8} {'vllm':>8} {'ours':>8}  {'share':>8} {'ours':>8} {'ratio':>7}  goal")
    for name, row in rows.items():
        share, own = row["vllm"] - row["none"], row["ours"] - row["none"]
        numbers = " ".join(f"{row[subject]:8.{decimals}f}" for subject in SUBJECTS)
        goal = f"{GOALS[name]:.2f}" if name in GOALS else ""
        print(
            f"{name:26} {numbers}  {share:8.{decimals}f} {own:8.{decimals}f} {own / share:7.3f}  {goal}".rstrip()
        )
