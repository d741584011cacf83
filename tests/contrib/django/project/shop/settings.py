"""The settings of the project that Django's own runner tests; SHOP_DATABASE says on which database."""

import os
from pathlib import Path
from typing import Any

from tests.harness.django_settings import on_file, on_server

given = os.environ.get("SHOP_DATABASE", ":memory:")
folder = Path(os.environ.get("SHOP_FOLDER", "."))
default: dict[str, Any]
if given.startswith("postgres"):
    default = on_server(given)
else:
    default = on_file(folder / "shop.db", transaction_mode=os.environ.get("SHOP_MODE"))
    default["TEST"] = {"NAME": None if given == ":memory:" else str(folder / "test_shop.db")}

SECRET_KEY = "only for tests"
DATABASES = {"default": default, "other": on_file(folder / "other.db")}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "shop",  # before ours: its ready() imports tasks
    "stoker.contrib.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "shop.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
USE_TZ = True
MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}  # Django 6.1 wants it
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STOKER = {"DATABASE": "default", "OPTIONS": {"attempts": 2}}
TASKS = {
    "default": {
        "BACKEND": "stoker.contrib.django.StokerBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"keep": 3600},
    }
}
