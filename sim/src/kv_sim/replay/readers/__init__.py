"""Readers of request traces: ``opening`` makes a trace of a file, whatever its format.

================= ========================================================================================
``opening``       reads a trace; ``options``: how; ``records``: its records, without those that don't count
**from a file**   to a request, each folder using only those above it
``record``        one request as a file has it; ``fields``: reads and checks its fields
``format``        ``Format``, a description of one format
``files/``        the records in a file, as mappings
``chats/``        requests and chats in any log, and their text
``requests/``     when a record's request arrives, which blocks its prompt has, and whose it is
``formats/``      a file for each format
``unknown/``      formats that a user describes, and what is said of files in none
**deciding**      what is not said
``catalogue``     all formats; ``detect``: which of them a record has
``decide``        the format and the units of a trace; ``guess``: the units if nothing says them
``meaning``       what the ids and sessions of a trace turn out to mean, for its notes
**for all**       of these
``json_values``   fields that may be missing, JSON within text; ``extended_json``: MongoDB's numbers and dates
``dates``         dates as programs write them; ``required``: values of a type, and where a wrong one is
``account``       counts of what became of each record
================= ========================================================================================
"""
