"""What a record says that its server had of a prompt, as tokens of the prompt that was read.

Where this was cut here, from text, it may be longer or shorter than the server's: the same share of it counts, and
where nobody says how long it was there, nothing can be said.
"""

from kv_sim.replay.observed import NOTHING_SAID, Observation
from kv_sim.replay.readers.account import Account
from kv_sim.replay.readers.record import Record


def observation_of(record: Record, account: Account) -> Observation:
    """What was observed of a record whose length is known. What can't be isn't believed, and is counted."""
    cached, loaded = record.cached_tokens, record.loaded_tokens
    if cached is None or (record.text is not None and record.told_tokens is None):
        return NOTHING_SAID
    counted_of = record.told_tokens or record.input_tokens
    if cached > counted_of or (loaded or 0) > cached:
        account.unbelieved += 1
        return NOTHING_SAID
    if counted_of != record.input_tokens:
        cached = cached * record.input_tokens // counted_of
        loaded = None
    return Observation(cached) if loaded is None else Observation(cached, loaded)
