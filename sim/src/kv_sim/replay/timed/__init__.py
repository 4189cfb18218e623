"""Engine fidelity: a trace through the engine model and real connectors, under a model of time.

``replay_engine(trace, settings)`` says how long the requests of a trace would have waited on a server with a host
cache, and on the same server without one. ``sweep_engine`` tries several sizes, and says which meet a goal.

=============== ==================================================================================
``arguments``   the command-line options; ``command``: makes settings of them
``settings``    all that a replay depends on; ``sizes``: what follows from it, and how much each thing costs
``hardware``    GPUs and models that are known by name
``refuse``      refuses settings and traces that are too large for a replay
``replay``      one setting, with the connector and without it
``sweep``       many sizes of memory; ``goal``: how long requests may take
``servers``     replays on several kinds of servers, in several processes
``run``         one trace on one server, or on several that share files
``split``       one trace on servers of which some prefill for the others
``engine/``     the testbed's engine with a clock, and the loop that drives it
``connectors/`` real connectors whose copies take time
``timing``      how long a step and a copy take
``link``        a link on which copies run one after the other; ``lanes``: the queues of its jobs
``network``     how long pulls between servers take; ``wires``: the wire that kv-p2p uses for them
``finished``    the raw results of one server; ``answers``: the figures that are made of them
=============== ==================================================================================
"""

from kv_sim.replay.timed.answers import Answers, Copies, Spread
from kv_sim.replay.timed.goal import Goal, parse_goals
from kv_sim.replay.timed.hardware import GPUS, MODELS, Gpu, Model
from kv_sim.replay.timed.replay import EngineReplay, replay_engine
from kv_sim.replay.timed.settings import Contents, EngineSettings, Stepping
from kv_sim.replay.timed.sizes import Sizes
from kv_sim.replay.timed.sweep import EngineSweep, sweep_engine

__all__ = [
    "GPUS",
    "MODELS",
    "Answers",
    "Contents",
    "Copies",
    "EngineReplay",
    "EngineSettings",
    "EngineSweep",
    "Goal",
    "Gpu",
    "Model",
    "Sizes",
    "Spread",
    "Stepping",
    "parse_goals",
    "replay_engine",
    "sweep_engine",
]
