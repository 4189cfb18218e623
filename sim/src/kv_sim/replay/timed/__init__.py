"""Engine fidelity: a trace through the engine model and real connectors, under a model of time.

``replay_engine(trace, settings)`` says how long the requests of a trace would have waited on a server with a host
cache, and on the same server without one. ``sweep_engine`` tries several sizes, and says which meet a goal. Each
part uses only those above it.

=============== ==========================================================
``durations/``  how long steps, copies and pulls take
``server/``     the server: its settings, its sizes, and its hardware
``engine/``     the testbed's engine with a clock, and the loop that drives it
``connectors/`` real connectors whose copies take time
``runs/``       a trace on one server or on several, and the figures of it
``goal``        how long requests may take
``replay``      one setting, with the connector and without it
``sweep``       many sizes of memory
=============== ==========================================================
"""

from kv_sim.replay.timed.goal import Goal, parse_goals
from kv_sim.replay.timed.replay import EngineReplay, replay_engine
from kv_sim.replay.timed.runs.answers import Answers, Copies, Spread
from kv_sim.replay.timed.server.hardware import GPUS, MODELS, Gpu, Model
from kv_sim.replay.timed.server.settings import Contents, EngineSettings, Stepping
from kv_sim.replay.timed.server.sizes import Sizes
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
