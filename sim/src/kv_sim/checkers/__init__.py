"""Checkers of a history, in addition to those in the engine model, its memory and its guard.

``violation.Invariant`` names the ten invariants, and ARCHITECTURE.md says which file checks which. Code that
finds one broken calls the ``violation.Referee``, which raises. Checkers are called from these places:

========================= =================================================================================
at every call             by the ``guard`` in front of a connector: the shape of an answer (``answers``), what it
                          says (``protocol``, ``accounting``, ``logged``, ``children``), what is found
                          (``served``), how often it is asked again (``work``), and where it ``raised``
at calls of a medium      ``medium`` and ``medium_worker``, which stand between kv-offload's connector and the
                          manager, and a worker; ``media`` puts them there
as the engine goes on     by ``engine/``: events and what workers report (``accounting``, ``protocol``); by the
                          world: what is counted (``accounting``), and what engines promise each other
                          (``tickets``)
at rest                   by ``at_rest``, which lets everything end before: what is left (``conservation``),
                          the ranks beside each other (``geometry``), what is still found (``hits``; of what
                          came last, ``recent``; of what another engine stored, ``sharing``; of what can't be
                          loaded, ``given_up``), by ``asking`` again, what must not be found
                          (``almost_equal``), and the ``room`` of a medium
when the engine ends      ``ending``, and what is then ``left_open``
========================= =================================================================================
"""
