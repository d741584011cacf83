"""Django's task framework: `django.tasks` of Django 6, else the package `django-tasks` with the same names."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.core.exceptions import ImproperlyConfigured

try:
    _root = "django.tasks"
    import_module(_root)
except ImportError:
    _root = "django_tasks"
    try:
        import_module(_root)
    except ImportError as error:
        raise ImproperlyConfigured(
            "StokerBackend needs Django's tasks: Django 6 has them, for Django 5.2 install django-tasks."
        ) from error

base: Any = import_module(f"{_root}.base")
task_backends: Any = import_module(_root).task_backends
signals: Any = import_module(f"{_root}.signals")
_exceptions: Any = import_module(f"{_root}.exceptions")

BaseTaskBackend: Any = import_module(f"{_root}.backends.base").BaseTaskBackend
Task, TaskContext, TaskError, TaskResult = base.Task, base.TaskContext, base.TaskError, base.TaskResult
TaskResultStatus = base.TaskResultStatus
normalize_json = base.normalize_json
TaskResultDoesNotExist = _exceptions.TaskResultDoesNotExist
InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
InvalidTaskBackend = getattr(_exceptions, "InvalidTaskBackend", None) or _exceptions.InvalidTaskBackendError
