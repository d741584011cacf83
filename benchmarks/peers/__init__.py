"""Stoker beside other job systems, in the same minutes on the same servers: `scripts/bench peers`."""
