"""Measures Stoker against what the machine allows. `scripts/bench --help`; README.md explains every row."""
