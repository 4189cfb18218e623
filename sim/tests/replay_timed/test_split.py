"""Servers that prefill for others, in time."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kv_sim_timed_traces import ListedTrace, comparable, servers, traces

from kv_sim.replay.timed import Answers, EngineSettings, Stepping
from kv_sim.replay.timed.answers import answers_of
from kv_sim.replay.timed.connectors.timed_config import prefill_config
from kv_sim.replay.timed.split import SplitTransfers, replay_split

EXTRA = "kv_connector_extra_config"


def split(
    trace: ListedTrace,
    settings: EngineSettings,
    prefilling: int = 1,
    decoding: int = 1,
    transfers: SplitTransfers | None = None,
) -> Answers:
    """Requests go to the servers in turns."""
    numbered = list(enumerate(trace))
    shares = [iter(numbered[first::prefilling]) for first in range(prefilling)]
    transfers = transfers or SplitTransfers.beside({})
    return answers_of(*replay_split(shares, decoding, settings, transfers, trace.block_tokens))


def impatient(hold: float, pull: float, most: int | None, connector: Any) -> SplitTransfers:
    own = {"hold_seconds": hold, "pull_seconds": pull} | ({} if most is None else {"max_held_blocks": most})
    usual = SplitTransfers.beside({})
    prefill, decode = ({**one, EXTRA: own} for one in (usual.prefill, usual.decode))
    if connector is not None:
        both = prefill_config(connector)
        prefill = {**both, EXTRA: {"connectors": [prefill, *both[EXTRA]["connectors"][1:]]}}
    return SplitTransfers(prefill, decode)


@given(data=st.data(), trace=traces(), settings=servers())
def test_fused_and_single_steps_agree(data: st.DataObject, trace: ListedTrace, settings: EngineSettings) -> None:
    prefilling, decoding = data.draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 3)]))
    short = st.sampled_from([1e-5, 1e-4, 120.0])
    most = st.sampled_from([None, None, 2, 6])
    connector = settings.connector if data.draw(st.booleans()) else None
    transfers = impatient(data.draw(short), data.draw(short), data.draw(most), connector)
    settings = replace(
        settings,
        network_bandwidth=data.draw(st.sampled_from([1e6, 1e8, 1e10])),
        pull_microseconds=data.draw(st.sampled_from([0.0, 3.0, 200.0])),
    )
    fused, single = (
        split(trace, replace(settings, stepping=stepping), prefilling, decoding, transfers)
        for stepping in Stepping
    )
    assert comparable(fused) == comparable(single)
    assert single.fused_steps == 0
