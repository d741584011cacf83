"""Any engine with its values sealed: what it stores is encrypted, what it returns is opened."""
