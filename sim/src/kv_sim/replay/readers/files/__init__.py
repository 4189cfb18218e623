"""From files to the records in them, as mappings, whatever kind of file it is.

============ =============================================================================================
``folder``   which files a trace has; ``lines``: the lines of one, unpacked
``objects``  the mappings in a file of JSON, joined where several lines describe one
``table``    the rows of a table as text; ``columnar``: those of Parquet and Arrow
============ =============================================================================================
"""
