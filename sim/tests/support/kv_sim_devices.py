"""Devices to write to."""

import os
import stat
from pathlib import Path


def device(name: str, folder: Path) -> Path:
    """``/dev/null`` or ``/dev/full``: one like it in ``folder``, so that a mistake can replace no other.

    Who may not make one, or not open it there, gets the machine's; nobody but root could replace that.
    """
    machines = Path("/dev", name)
    own = folder / name
    try:
        os.mknod(own, stat.S_IFCHR | 0o666, machines.stat().st_rdev)
    except PermissionError:
        return machines
    try:
        own.open("wb").close()
    except PermissionError:
        own.unlink()
        return machines
    return own
