"""`manage.py stoker`."""
