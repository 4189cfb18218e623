"""Engine fidelity: a trace through the engine model and real connectors, under a model of time.

``replay_engine(trace, settings)`` says how long the requests of a trace would have waited on a server with a host
cache, and on the same server without one.

========================= =================================================================================
``command``               from options to ``settings``; what is known of GPUs and models is ``hardware``
``replay``                with a connector and without; ``run``: one of these; ``refuse``: what it can't hold
``drive``                 the loop of steps, which leaves out quiet ones: of a step is then left its ``sleepers``
``engine``                the testbed's, with a ``scheduler`` that notes what steps cost, a ``device`` that has a
                          clock, and each ``request`` of the trace
``timing``                what a step and a copy take; ``link``: what copies take that others are in front of
``stack``                 the connector whose copies are timed: over host memory (``medium``) or ``files``; or
                          ``nothing``
``books``                 what is counted; ``answers``: what is said of it
========================= =================================================================================
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
