"""The lab: storms of faults over every kind of work, a judge, and results that add up. Run it by `scripts/lab`."""
