"""The options that say which trace ``kv-sim replay`` and ``kv-sim size`` take, and how it is read."""

import argparse
from enum import Enum

from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.files.folder import SHIPPED
from kv_sim.replay.readers.format import Turns
from kv_sim.replay.readers.options import OnError, Partial, Unsorted
from kv_sim.replay.readers.requests.naming import IdMeaning, IdScope
from kv_sim.replay.readers.unknown.own_columns import PARTS


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the trace, and how it is read."""
    parser.add_argument(
        "trace", metavar="TRACE", help=f"a file, a folder of files, or a shipped one: {', '.join(SHIPPED)}"
    )
    reading = parser.add_argument_group("how the trace is read")
    reading.add_argument(
        "--format",
        metavar="NAME",
        help=f"the trace's format (default: recognised by its contents): {', '.join(FORMATS)}",
    )
    reading.add_argument(
        "--columns",
        metavar="PARTS",
        help=f"for other formats, which column has what: {', '.join(f'{p}=…' for p in PARTS)}",
    )
    reading.add_argument(
        "--time-unit", metavar="UNIT", help="the unit of times: s, ms, us or ns (default: the format's)"
    )
    reading.add_argument("--block-size", type=int, metavar="N", help="tokens in a block (default: the format's)")
    _add_meaning(reading)


def _add_meaning(reading: argparse._ArgumentGroup) -> None:
    """What records and ids mean where a trace leaves it open."""
    reading.add_argument(
        "--partial-block",
        choices=values_of(Partial),
        default="keep",
        help="what to do with a last block that isn't full",
    )
    reading.add_argument(
        "--ids",
        choices=values_of(IdMeaning),
        default="auto",
        help="what an equal id means: an equal prefix, or only an equal block",
    )
    reading.add_argument(
        "--id-scope", choices=values_of(IdScope), default="auto", help="how far equal ids mean equal blocks"
    )
    reading.add_argument(
        "--on-error", choices=values_of(OnError), default="stop", help="what to do at a malformed record"
    )
    reading.add_argument(
        "--unsorted",
        choices=values_of(Unsorted),
        default="stop",
        help="what to do with a request that is earlier than the one before it",
    )
    reading.add_argument(
        "--turns",
        choices=values_of(Turns),
        default="auto",
        help="what a later turn of a session contains: the whole prompt, or only what it adds",
    )
    reading.add_argument(
        "--tokenizer", metavar="FILE", help="the model's tokenizer.json, which turns text into tokens"
    )
    reading.add_argument(
        "--stagger",
        type=float,
        default=0.0,
        metavar="S",
        help="for traces without times: seconds between the starts of sessions",
    )
    reading.add_argument("--requests", type=int, metavar="N", help="replay only the first N requests")
    reading.add_argument(
        "--assume-sharing",
        metavar="HOW",
        help="which prompts share prefixes, in a trace without block ids: none, or zipf:prefixes=…",
    )
    reading.add_argument("--seed", type=int, metavar="N", help="the seed of --assume-sharing (default 0)")


def values_of(choices: type[Enum]) -> list[str]:
    """What may be typed for one of these choices."""
    return [str(choice.value) for choice in choices]
