"""What all engines have in common: the unit of work and the careful path over it."""
