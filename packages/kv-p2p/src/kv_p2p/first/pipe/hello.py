"""The first messages of a connection: a consumer's hello, and the producer's welcome or refusal. Pure.

The consumer's hello has the protocol's version, its role and rank, the channel that the connection is for, and a
name that all its connections share. The producer's answer is a welcome, or a refusal with its reason.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

VERSION: Final = 1
_VERSION_KEY: Final = "kv_p2p_pipe"


class Channel(Enum):
    """Which pipe one of the two connections is for."""

    SIGNAL = "signal"
    DATA = "data"


WELCOME: Final[Mapping[str, Any]] = {"welcome": VERSION}


def make_hello(channel: Channel, rank: int, caller: str) -> dict[str, Any]:
    """The first message of a consumer."""
    return {_VERSION_KEY: VERSION, "role": "kv_consumer", "rank": rank, "channel": channel.value, "caller": caller}


def make_refusal(reason: str) -> dict[str, Any]:
    """The answer to a hello that is refused."""
    return {"refused": reason}


def find_fault(hello: Mapping[str, Any], rank: int, taken: Mapping[Channel, str]) -> str | None:
    """Why a producer of ``rank`` refuses a hello; None if it is fine. ``taken``: the callers welcomed so far."""
    if _VERSION_KEY not in hello:
        keys = ", ".join(sorted(hello)) or "no key"
        return f"this is a producer's port, and the first frame is no hello: it has {keys}"
    if hello[_VERSION_KEY] != VERSION:
        return f"the caller speaks version {hello[_VERSION_KEY]!r} of the protocol, the producer version {VERSION}"
    if hello.get("role") != "kv_consumer":
        return f"a producer waits for a kv_consumer here, and the caller is a {hello.get('role')!r}"
    if hello.get("rank") != rank:
        return f"this is the port of rank {rank}, and the caller has rank {hello.get('rank')!r}"
    channels = [channel.value for channel in Channel]
    if hello.get("channel") not in channels:
        return f"a connection is for one of {', '.join(channels)}, and this one for {hello.get('channel')!r}"
    if not isinstance(hello.get("caller"), str):
        return f"the caller has no name: {hello.get('caller')!r}"
    if any(caller != hello["caller"] for caller in taken.values()):
        return "the producer has another consumer"
    if Channel(hello["channel"]) in taken:
        return f"the caller has a {hello['channel']} connection already"
    return None


def find_refusal(answer: Mapping[str, Any]) -> str | None:
    """Why a producer refused its caller; None if it welcomed it."""
    if answer == WELCOME:
        return None
    return str(answer.get("refused", f"it answered with {', '.join(sorted(answer)) or 'no key'}"))
