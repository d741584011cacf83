"""Actions: forms below the page they act on. Each answers with a page that says what was done and how to undo it.

A module has a table of its verbs; `routes` makes an address of each.
"""
