"""Engine fidelity: a trace through the engine model and real connectors, under a model of time.

``replay_engine(trace, settings)`` says how long the requests of a trace would have waited on a server with a host
cache, and on the same server without one; ``sweep_engine`` says the same of several sizes, and who meets a goal.

========================= =================================================================================
``command``               from ``arguments`` to ``settings``; what is known of GPUs and models is ``hardware``
``replay``                with a connector and without; ``sweep``: with more and more memory, for a ``goal``; both
                          are done on ``servers``, side by side
``run``                   one trace on one of them, or on several that share files; ``split``: on some that prefill
                          for others; ``refuse``: what it can't hold
``engine/``               what runs there: the testbed's engine with a clock, and the loop of its steps
``connectors/``           those of a server, over media whose copies are timed
``timing``                what a step and a copy take; ``link``: what copies take that others are in front of, in
                          ``lanes``; ``wires``: who pulls what from whom, over a ``network``
``finished``              what is left at the end; ``answers``: what is said of that
========================= =================================================================================
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
