"""What a consumer says when it has connected, and what a producer has against it. Pure: headers in, words out.

The consumer's hello names the protocol's version, its role and rank, what the connection is for, and a name that
all its connections share. The producer's answer is a welcome or a refusal with its reason.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

VERSION: Final = 1
_VERSION_KEY: Final = "kv_p2p_pipe"


class Channel(Enum):
    """What one of the two connections is for."""

    SIGNAL = "signal"
    DATA = "data"


WELCOME: Final[Mapping[str, Any]] = {"welcome": VERSION}


def make_hello(channel: Channel, rank: int, caller: str) -> dict[str, Any]:
    """What who connects says first."""
    return {_VERSION_KEY: VERSION, "role": "kv_consumer", "rank": rank, "channel": channel.value, "caller": caller}


def make_refusal(reason: str) -> dict[str, Any]:
    """The answer to a hello that is of no use."""
    return {"refused": reason}


def find_fault(hello: Mapping[str, Any], rank: int, taken: Mapping[Channel, str]) -> str | None:
    """What is wrong with a hello to a producer of ``rank``, where ``taken`` are the callers it has welcomed."""
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
    """Why a producer didn't welcome its caller."""
    if answer == WELCOME:
        return None
    return str(answer.get("refused", f"it answered with {', '.join(sorted(answer)) or 'no key'}"))
