"""What is shown of results: as text, as JSON, and as a page with charts. Nothing is worked out here.

``text`` is what is printed, ``as_json`` what ``--json`` writes, and ``page`` what ``--html`` does: with the charts
of ``chart``, in the ``style`` that they share. Of a replay with time ``timed/`` has the first two.
"""
