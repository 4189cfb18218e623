"""Files of no known format: how a user says where the fields are, and what the user is told otherwise.

================== =======================================================================================
``own_columns``    a format given by ``--columns``; ``own_prompts``: reads the text of its prompts
``likely_columns`` a guess at the columns to give
``further_in``     where in an exported log its records lie, and the jq command that takes them out
``reports``        known files without readable requests, and what to use instead of each
================== =======================================================================================
"""
