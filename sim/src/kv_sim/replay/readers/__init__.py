"""Readers of request traces: ``opening`` makes a trace of a file, whatever its format.

===================== =====================================================================================
``formats/``          a file for each format; ``catalogue``: all formats, and how to tell which one a file has
``reports``           known files without readable requests, and what to use instead of each
``format``            ``Format``, a description of one format; ``own_columns``: a format given by ``--columns``,
                      whose text ``own_prompts`` reads; ``likely_columns``: a guess at the columns to give
``asked``             the request to an API, wherever a log keeps it; ``answered``: its answer as text;
                      ``parts``: the parts of a message as text
``chat``              the prompt of a chat, and of each answer of a conversation; ``chains``: the earlier
                      messages of requests that only have the new ones
``usual``             requests of Gemini's API and of Text Generation Inference in the form of OpenAI's API
``messages``          chats that programs save, in which an answer stands below its question
``source``            the files and their lines; ``objects``: the mappings in them, joined where several lines
                      describe one; ``table``, ``columnar``: the rows of a table
``record``            one request as a file has it; ``records``: all requests of a trace, without those that don't
                      count; ``dates``: dates as programs write them; ``extended_json``: MongoDB's numbers, dates
``further_in``        where in an exported log its records lie, and the jq command that takes them out
``decide``            the format and the units of a trace; ``guess``: the units if nothing says them
``naming``            from the ids of a file to ids that name a prefix; ``text``: such ids from text alone;
                      ``sharing``: assumed shared prefixes where only lengths are known
``meaning``           what the ids and sessions of a trace turn out to mean, for its notes
``sessions``          which requests belong together; ``turns``: what a later request has of earlier ones;
                      ``times``: when requests arrive
``observing``         how much of a prompt the trace's own server had cached; ``cached``: where an API says it
``options``           the options by which a trace is read; ``account``: counts of what became of each record
===================== =====================================================================================
"""
