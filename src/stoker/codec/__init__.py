"""Arguments, results and errors of jobs to stored text and back.

`signature` encodes calls and results by a handler's type hints; `to_json` encodes single values; `json_check` refuses
JSON that some engine could not store unchanged; `error_text` describes exceptions.
"""
