"""Steps, sleeps, waits and calls of one run: what makes a job durable.

A handler runs again from its beginning after a wait, a failure or a death, and what it has stored by name is not done
again. A run that does nothing but wait is suspended. `run.py` is what a handler asks for, `stored_rows.py` what the run
stores, `suspension.py` when it is suspended, `values.py` how values and failures are kept in rows.
"""
