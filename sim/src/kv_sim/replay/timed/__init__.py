"""Engine fidelity: a trace through the engine model and real connectors, under a model of time.

``replay_engine(trace, settings)`` says how long the requests of a trace would have waited on a server with a host
cache, and on the same server without one. ``drive`` has the loop of steps, ``timing`` what a step and a copy take,
``medium`` where the real connector's copies become jobs of a link.
"""

from kv_sim.replay.timed.answers import Answers, Copies, Spread
from kv_sim.replay.timed.hardware import GPUS, MODELS, Gpu, Model
from kv_sim.replay.timed.replay import EngineReplay, replay_engine
from kv_sim.replay.timed.settings import Contents, EngineSettings, Sizes, Stepping

__all__ = [
    "GPUS",
    "MODELS",
    "Answers",
    "Contents",
    "Copies",
    "EngineReplay",
    "EngineSettings",
    "Gpu",
    "Model",
    "Sizes",
    "Spread",
    "Stepping",
    "replay_engine",
]
