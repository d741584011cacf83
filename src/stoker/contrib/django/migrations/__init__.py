"""Only the permissions of the dashboard; the schema of the jobs is kept by `stoker.contrib.django.schema`."""
