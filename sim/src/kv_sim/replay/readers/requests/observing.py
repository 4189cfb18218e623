"""The cached tokens that a record reports, scaled to the prompt as it was read.

A prompt that was tokenized here from text may be longer or shorter than the server's. Then the same share of it
counts as cached. If the record doesn't have the server's prompt length, its cached tokens are ignored.
"""

from kv_sim.replay.observed import NOTHING_SAID, Observation
from kv_sim.replay.readers.account import Account
from kv_sim.replay.readers.record import Record


def observation_of(record: Record, account: Account) -> Observation:
    """The observation of a record whose length is known.

    Impossible counts are ignored, and counted in ``account``.
    """
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
