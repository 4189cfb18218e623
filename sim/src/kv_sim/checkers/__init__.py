"""What a history is judged by, beyond what the engine model, its memory and its guard notice themselves.

``violation.Invariant`` names the ten invariants, and ARCHITECTURE.md says which file looks after which. Whoever
finds one broken tells the ``violation.Referee``, which raises. A checker is called by who sees what it judges:

========================= =================================================================================
at every call             by the ``guard`` in front of a connector: the shape of an answer (``answers``), what it
                          says (``protocol``, ``accounting``, ``children``), what is found (``served``), and
                          how often it is asked again (``work``)
at calls of a medium      ``medium`` and ``medium_worker``, which stand between kv-offload's connector and the
                          manager, and a worker
as the engine goes on     by ``engine/``: events and what workers report (``accounting``, ``protocol``); by the
                          world: what is counted (``accounting``), and what engines promise each other
                          (``tickets``)
at rest                   by ``at_rest``, which lets everything end before: what is left (``conservation``),
                          the ranks beside each other (``geometry``), what is still found (``hits``; of what
                          came last, ``recent``; of what another engine stored, ``sharing``), by ``asking``
                          again, and the ``room`` of a medium
when the engine ends      ``ending``, and what is then ``left_open``
========================= =================================================================================
"""
