"""Whether the tests of a package find a mutant of it. For a process that imports nothing of the package before."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from mutation.changes import Mutant, Mutated

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 600
"""The tests of a package take less than one."""


def tests_fail(package: str, mutant: Mutant | None) -> bool:
    """Run a package's tests until one fails, but for those of torch and vLLM. None: nothing is changed."""
    if mutant is not None:
        sys.meta_path.insert(0, Mutated(mutant))
    import pytest

    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(PATIENCE_SECONDS)
    folder = ROOT / "packages" / package.replace("_", "-") / "tests"
    quiet = ["-q", "-x", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
    where = [f"--config-file={ROOT / 'pyproject.toml'}", f"--rootdir={ROOT}"]
    status = pytest.main([*quiet, *where, "-m", "not torch and not vllm", str(folder)])
    return status != pytest.ExitCode.OK
