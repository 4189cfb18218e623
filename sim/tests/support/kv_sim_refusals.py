"""A request as a file has it, and what a command says that refuses one."""

import json

from kv_sim.cli.main import main

GOOD = json.dumps({"timestamp": 1000, "input_length": 512, "output_length": 1, "hash_ids": [1]})


def line(**fields):
    return json.dumps({**json.loads(GOOD), **fields}) + "\n"


def refused(capsys, *command):
    """The message of a command that is refused."""
    assert main([*map(str, command)]) == 2
    out, err = capsys.readouterr()
    assert not out and "Traceback" not in err
    [text] = err.splitlines()
    return text.removeprefix(f"kv-sim {command[0]}: ")
