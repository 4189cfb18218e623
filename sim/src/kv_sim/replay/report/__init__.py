"""How results are shown: as text, as JSON, and as a page with charts. Nothing is computed here.

``text`` is what is printed, ``as_json`` what ``--json`` writes, and ``page`` what ``--html`` writes, with charts
(``chart``) and a style sheet (``style``); text and page share ``phrases``. For a replay with time the first two
are in ``timed/``. ``oracle`` writes the trace itself, for other simulators.
"""
