"""Where an app can be imported from, as `module:attribute`; new processes need it to find the tasks.

`stoker work app:jobs` gives the path. Otherwise the loaded modules are searched for the app object.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import PurePath
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from stoker.app import Stoker
from stoker.model.errors import StokerError
from stoker.model.names import AN_APP
from stoker.task import Task

_known: WeakKeyDictionary[Stoker, str] = WeakKeyDictionary()


class NotImportable(StokerError):
    """A fresh interpreter would not find this app or task."""


EXAMPLE = "write it as module:attribute, for example app:jobs for `jobs = Stoker(...)` in app.py"


def remember(app: Stoker, path: str) -> None:
    """Record that this app was imported from `path`."""
    _known[app] = path


def load(path: str) -> Stoker:
    """Import the app at `module:attribute`. Raises `NotImportable` with advice."""
    found = load_any(path)
    if not isinstance(found, Stoker):
        module_name = path.partition(":")[0]
        holds = _apps_in(sys.modules[module_name])
        raise NotImportable(f"{path} is a {type(found).__name__}, not a Stoker; {module_name} holds {holds}")
    return found


def load_any(path: str) -> Any:
    """Import the object at `module:attribute`, or what a function there returns. Raises `NotImportable` with advice."""
    module_name, colon, attribute = path.partition(":")
    if not module_name or (colon and not attribute):
        raise NotImportable(f"{path!r} names no app: {EXAMPLE}")
    module = _import(module_name, path)
    found: Any = module if colon else _only_app(module, path)
    for step in attribute.split(".") if colon else ():
        if not hasattr(found, step):
            raise NotImportable(f"{path}: {module_name} has no {attribute!r}; it holds {_apps_in(module)}")
        found = getattr(found, step)
    if callable(found) and not isinstance(found, Stoker | Task):
        found = found()
    if isinstance(found, Stoker):
        remember(found, path)
    return found


def path_of(app: Stoker) -> str | None:
    """The `module:attribute` under which this app can be imported, or None."""
    if app not in _known:
        for name, module in list(sys.modules.items()):
            if name != "__main__" and isinstance(module, ModuleType):
                attribute = next((key for key, value in list(vars(module).items()) if value is app), None)
                if attribute is not None:
                    _known[app] = f"{name}:{attribute}"
                    break
    return _known.get(app)


def named(app: Stoker) -> str:
    """How commands name this app; `app:jobs` where it is not known from where it can be imported."""
    return path_of(app) or AN_APP


def address(task: Task[..., Any]) -> tuple[str, tuple[str, ...]]:
    """The app's path and the modules to import for this task. Raises when a fresh interpreter cannot find it."""
    module = getattr(task.fn, "__module__", None)
    if module == "__main__":
        why = "is defined in the script itself, which a fresh process cannot import; move it into a module"
        raise NotImportable(f"task {task.name} is set to run in a separate process but {why}")
    path = path_of(task.app)
    if path is None:
        why = "belongs to an app that no module holds; make the Stoker object and its tasks at the top of a module"
        raise NotImportable(f"task {task.name} is set to run in a separate process but {why}")
    return path, () if module is None or module.startswith("stoker.") else (module,)


def _import(name: str, path: str) -> ModuleType:
    missing = name
    try:
        if not name.startswith("."):  # relative to what?
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise
        missing = error.name
    if "/" in name or name.endswith(".py"):
        file = PurePath(name.removesuffix(".py"))
        module = file.name if file.is_absolute() else ".".join(file.parts)
        raise NotImportable(f"{path}: name the module, not its file: {path.replace(name, module, 1)}")
    why = f"there is no module {missing!r} on the path of this Python; start from the folder that holds it, "
    raise NotImportable(f"{path}: {why}or {EXAMPLE}")


def _only_app(module: ModuleType, path: str) -> Stoker:
    apps = {id(value): value for value in vars(module).values() if isinstance(value, Stoker)}
    if len(apps) != 1:
        raise NotImportable(f"{path}: name the app: {module.__name__} holds {_apps_in(module)}; {EXAMPLE}")
    return next(iter(apps.values()))


def _apps_in(module: ModuleType) -> str:
    names = [key for key, value in vars(module).items() if isinstance(value, Stoker)]
    return ", ".join(f"{module.__name__}:{name}" for name in names) or "no Stoker at all"
