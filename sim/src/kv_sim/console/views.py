"""What ``--log`` and ``--perfetto`` ask for: worlds that somebody watches."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kv_api import ConfigError
from kv_sim.console.output import say
from kv_sim.watching.log import Log
from kv_sim.watching.perfetto import Perfetto
from kv_sim.watching.watch import WatchedWorld, Watcher
from kv_sim.world import World


def make_world(options: argparse.Namespace) -> Callable[..., World]:
    """Worlds that are watched as the options say."""
    watchers: list[Watcher] = []
    if options.log:
        watchers.append(Log(say))
    if options.perfetto:
        if not Path(options.perfetto).resolve().parent.is_dir():
            raise ConfigError(f"--perfetto {options.perfetto}: there is no such folder")
        if Path(options.perfetto).is_dir():
            raise ConfigError(f"--perfetto {options.perfetto}: this is a folder, expected the path of a file")
        watchers.append(Perfetto(Path(options.perfetto)))
    return partial(WatchedWorld, watchers=watchers) if watchers else World
