"""A shop on Django: orders, mails after the commit, a report every night.

python manage.py migrate && python manage.py runserver     # and in another terminal:
python manage.py stoker work
"""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
