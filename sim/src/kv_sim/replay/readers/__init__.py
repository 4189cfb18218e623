"""Readers of request traces: ``opening`` makes a trace of a file, whatever its format.

===================== =====================================================================================
``formats/``          what is known of each format, a file each; ``catalogue``: all of them, and how to tell
                      which one a file has
``format``            what a reader says of its format; ``own_columns``: a format that is told, not known, of
                      which ``likely_columns`` are what they are called elsewhere, and ``own_prompts`` text
``asked``             what an API was asked, wherever a log keeps it (``answered``: and its answer as text);
                      ``parts``: what its messages say, as text
``chat``              the prompt that a chat is, and what each answer of a conversation was given to; ``chains``:
                      what was said before, of requests that only go on
``usual``             what some APIs are asked, as most are
``messages``          what programs keep of their chats, where answers stand below what they were given to
``source``            the files and their lines; ``objects``: what lies in them, as mappings, gathered where
                      several lines tell of one (``table``, ``columnar``: the rows of one)
``record``            one request as a file has it; ``records``: all of a trace's, without those that don't count
                      (``dates``: as programs write them; ``extended_json``: numbers and dates of MongoDB's)
``further_in``        how to get at records within what is wrapped around them
``decide``            which format a trace has, and which units, by a ``guess`` where nobody says
``naming``            from the ids of a file to ids that name a prefix; ``text``: ids where there is only text;
                      ``sharing``: where there is nothing
``meaning``           what ids and sessions turn out to mean, of which a trace's notes tell
``sessions``          which requests belong together; ``turns``: what a later one has; ``times``: when they arrive
``observing``         what a server had of a prompt, by its own count; ``cached``: where an API says it
``options``           how a trace is read; ``account``: what became of each record
===================== =====================================================================================
"""
