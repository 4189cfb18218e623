"""From files to the records in them, as mappings, whatever kind of file it is.

============ =============================================================================================
``source``   the files of a trace, unpacked, and their lines
``objects``  the mappings in a file of JSON, joined where several lines describe one
``table``    the rows of a table as text; ``columnar``: those of Parquet and Arrow
============ =============================================================================================
"""
