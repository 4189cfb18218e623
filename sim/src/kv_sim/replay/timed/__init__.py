"""Engine fidelity: a trace through the engine model and real connectors, under a model of time.

``replay_engine(trace, settings)`` says how long the requests of a trace would have waited on a server with a host
cache, and on the same server without one; ``sweep_engine`` the same of several sizes, and who meets a goal.
``drive`` has the loop of steps, ``timing`` what a step and a copy take, ``medium`` where the real connector's
copies become jobs of a link.
"""

from kv_sim.replay.timed.answers import Answers, Copies, Spread
from kv_sim.replay.timed.goal import Goal, parse_goals
from kv_sim.replay.timed.hardware import GPUS, MODELS, Gpu, Model
from kv_sim.replay.timed.replay import EngineReplay, replay_engine
from kv_sim.replay.timed.settings import Contents, EngineSettings, Sizes, Stepping
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
