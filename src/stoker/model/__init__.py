"""The rules about jobs, as pure functions: no clock, no randomness, no I/O.

Whatever decides about a status, an attempt, a delay or a budget lives here and nowhere else. Engines import these
values and make one guarded write atomic; they decide nothing.
"""
