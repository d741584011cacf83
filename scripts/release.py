"""Builds the release into `dist/`, and tries it as a user would: in an empty environment of each Python found.

A trial installs the wheel with everything that users may ask for, and runs the program of the README, the demo, a
worker and the doctor. The sdist is built into a wheel once more, and both must hold the same files.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
ASK = "import sys; print('{}.{}'.format(*sys.version_info))"
GATHER = "Take them in and commit that first: changelog.d/README.md says how"
PROGRAM = re.compile(r"^```python file=app\.py\n(.*?)^```", re.DOTALL | re.MULTILINE)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/release", description="Build the release and try it.")
    parser.add_argument("--tag", help="the tag it is built for, as v0.1.0: it must name the version")
    parser.add_argument("--python", action="append", help="try only this version, as 3.13; repeatable")
    given = parser.parse_args(arguments)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if given.tag not in {None, f"v{version}"}:
        sys.exit(f"stoker: the tag {given.tag} is not v{version}, the version in pyproject.toml; nothing was built")
    fragments = sorted(path.name for path in (ROOT / "changelog.d").glob("+*.md"))
    if given.tag and fragments:
        lack = f"CHANGELOG.md lacks {len(fragments)} of changelog.d, {fragments[0]} first"
        sys.exit(f"stoker: {lack}; nothing was built. {GATHER}")
    wheel = build(ROOT / "dist")
    found = {name: path for name, path in pythons().items() if not given.python or name in given.python}
    missing = set(given.python or ()) - set(found)
    if missing or not found:
        sys.exit(f"stoker: found no Python {', '.join(sorted(missing)) or '3.11 or newer'} to try the wheel with")
    for name, python in found.items():
        with tempfile.TemporaryDirectory(prefix="stoker-release-") as folder:
            attempt(wheel, python, Path(folder))
        print(f"stoker: {wheel.name} works on Python {name} ({python})")
    return 0


def build(folder: Path) -> Path:
    """Build sdist and wheel; return the wheel. One made from the sdist must be the same."""
    shutil.rmtree(folder, ignore_errors=True)
    hatch = [sys.executable, "-m", "hatchling", "build"]
    subprocess.run([*hatch, "-d", str(folder)], cwd=ROOT, check=True)
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="stoker-sdist-") as scratch:
        shutil.unpack_archive(sdist, scratch)
        [source] = Path(scratch).iterdir()
        subprocess.run([*hatch, "-t", "wheel", "-d", scratch], cwd=source, check=True)
        [again] = Path(scratch).glob("*.whl")
        if contents(again) != contents(wheel):
            sys.exit(
                "stoker: the wheel of the sdist is not that of the checkout; see [tool.hatch.build] in pyproject.toml"
            )
    return wheel


def contents(wheel: Path) -> dict[str, int]:
    """The files of a wheel with their checksums; the record of the files names the same ones."""
    with zipfile.ZipFile(wheel) as archive:
        return {one.filename: one.CRC for one in archive.infolist()}


def pythons() -> dict[str, str]:
    """The interpreters found that are new enough, one for each version, by version."""
    names = [f"python3.{minor}" for minor in range(OLDEST[1], 21)]
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [
        sys.executable,
        *filter(None, map(shutil.which, names)),
        *map(str, sorted(kept.glob("3.*/bin/python3"))),
    ]
    found: dict[str, str] = {}
    for path in candidates:
        asked = subprocess.run([path, "-c", ASK], capture_output=True, text=True, check=False)
        version = asked.stdout.strip()
        if asked.returncode == 0 and tuple(map(int, version.split("."))) >= OLDEST:
            found.setdefault(version, path)
    return dict(sorted(found.items(), key=lambda item: tuple(map(int, item[0].split(".")))))


def attempt(wheel: Path, python: str, folder: Path) -> None:
    """Install the wheel into an empty environment, and use it from an empty folder."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    home, work = folder / "venv" / "bin", folder / "work"
    pip = [sys.executable, "-m", "pip", "--python", str(home / "python"), "install", "-q"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), f"{wheel}[all]"], check=True)
    work.mkdir()
    program = PROGRAM.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert program is not None, "the README has no first program"
    (work / "app.py").write_text(program[1], encoding="utf-8")
    environment = {"PATH": f"{home}:{os.defpath}", "HOME": str(folder), "LANG": "C.UTF-8"}
    for command in (
        ["stoker", "--version"],
        ["python", "app.py"],
        ["stoker", "demo", "--jobs", "1000"],
        ["stoker", "work", "app:jobs", "--drain"],
        ["stoker", "status", "app:jobs"],
        ["stoker", "doctor", "app:jobs"],
    ):
        done = subprocess.run(
            [str(home / command[0]), *command[1:]],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"stoker: {' '.join(command)} failed on {python}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
