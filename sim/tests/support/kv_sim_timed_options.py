"""What is typed for a replay with a clock, and the settings of the server that it means."""

import argparse

from kv_sim.replay.command.timed.arguments import add_replay_arguments
from kv_sim.replay.command.timed.run import settings_of
from kv_sim.replay.timed import EngineSettings


def parsed(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_replay_arguments(parser)
    parser.set_defaults(jobs=1)
    return parser.parse_args(line.split())


def only(line: str) -> EngineSettings:
    """What a line says, where it is one server."""
    [settings] = settings_of(parsed(line))
    return settings
