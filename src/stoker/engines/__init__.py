"""Stores. Each engine makes guarded writes atomic and knows no rule of its own; `base` states the contract."""
