"""What all engines have in common: the unit of work, and how jobs are changed in it one by one."""
