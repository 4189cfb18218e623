"""Traces of which some requests are of sessions, on fleets."""

from random import Random

import numpy as np
from hypothesis import strategies as st
from kv_sim_slow_replay import prefix_trace, trace_of

from kv_sim.replay.columns import NO_SESSION
from kv_sim.replay.servers.fleet import Fleet, RoutedTrace
from kv_sim.replay.servers.routing import Routing

traces = st.tuples(st.integers(0, 10**9), st.integers(0, 40)).map(
    lambda drawn: prefix_trace(Random(drawn[0]), drawn[1])
)
fleets = st.builds(Fleet, st.integers(1, 5), st.sampled_from(list(Routing)))


def with_sessions(made, seed):
    """A trace in which some requests are of a session."""
    random = Random(seed)
    made.sessions = np.array([random.choice([NO_SESSION, 0, 1, 2, 3]) for _ in range(len(made))], dtype=np.int64)
    if len(made):
        made.sessions[0] = 0
    return made


def routed(requests, fleet, seed=0):
    """A trace on a fleet; of no request there are no sessions, so it goes round."""
    if not requests:
        fleet = Fleet(fleet.servers)
    return RoutedTrace(with_sessions(trace_of(requests), seed), fleet)
