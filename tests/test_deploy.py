"""The files to deploy with: their commands exist, their parts fit together, and systemd takes the units."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.release import OLDEST
from tests.docs.test_commands import wrong
from tests.services import binaries

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
MANIFESTS: list[dict[str, Any]] = [
    one
    for path in sorted(DEPLOY.glob("kubernetes/*.yaml"))
    for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
UNITS = sorted(DEPLOY.glob("systemd/*.service"))


def pods() -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in MANIFESTS if one["kind"] in {"Deployment", "Job"}]


def commands() -> list[str]:
    docker = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    found = [shlex.join(json.loads(one)) for one in docker]
    found += [shlex.join(one["command"]) for one in COMPOSE["services"].values() if "command" in one]
    found += [shlex.join(container["args"]) for pod in pods() for container in pod["containers"]]
    for unit in UNITS:
        found += re.findall(r"^ExecStart=\S+/(stoker .*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    return found


def test_every_command_exists_with_its_options() -> None:
    assert len(commands()) == 8
    assert {command: wrong(command) for command in commands()} == dict.fromkeys(commands())


def test_the_image_runs_as_a_user_without_rights_and_can_be_asked_for_its_health() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    last = text[text.rindex("FROM ") :]
    assert re.search(r"^USER 10001$", last, re.MULTILINE)
    assert re.search(r"^STOPSIGNAL SIGTERM$", last, re.MULTILINE)
    ready = re.search(r'"--health-file", "(\S+)"', last)
    assert ready is not None
    assert f'HEALTHCHECK --interval=10s --start-period=20s CMD ["test", "-e", "{ready[1]}"]' in last
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((DEPLOY.parent / name).exists() for name in source.split()), source


def test_workers_have_more_time_to_stop_than_their_jobs() -> None:
    """Ten seconds beyond the grace the supervisor kills what is left: who stops it has to wait for that."""
    [worker] = [pod for pod in pods() if "work" in pod["containers"][0]["args"]]
    words = worker["containers"][0]["args"]
    grace = int(words[words.index("--grace") + 1].removesuffix("s"))
    assert worker["terminationGracePeriodSeconds"] >= grace + 10
    [unit] = [one.read_text(encoding="utf-8") for one in UNITS if "stoker work" in one.read_text(encoding="utf-8")]
    found = re.search(r"--grace (\d+)s", unit), re.search(r"TimeoutStopSec=(\d+)", unit)
    assert found[0] is not None and found[1] is not None
    assert int(found[1][1]) >= int(found[0][1]) + 10
    assert COMPOSE["services"]["worker"]["stop_grace_period"] == "60s"


def test_probes_and_services_name_ports_that_exist() -> None:
    for pod in pods():
        [container] = pod["containers"]
        named = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        for probe in ("readinessProbe", "livenessProbe"):
            for kind in ("httpGet", "tcpSocket"):
                port = container.get(probe, {}).get(kind, {}).get("port")
                assert port is None or port in named
        words = container["args"]
        for option, port in pairwise(words):
            assert option not in {"--health-port", "--metrics-port"} or int(port) in named.values()
    [service] = [one for one in MANIFESTS if one["kind"] == "Service"]
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in MANIFESTS if one["kind"] == "Deployment"]
    assert service["spec"]["selector"] in labels


def test_compose_waits_for_the_database_and_the_migration() -> None:
    services = COMPOSE["services"]
    assert services["worker"]["deploy"]["replicas"] == 2
    for name in ("worker", "dashboard"):
        assert services[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
        assert "@db/" in services[name]["environment"]["STOKER_URL"]
    assert services["migrate"]["depends_on"] == {"db": {"condition": "service_healthy"}}
    healthy = services["db"]["healthcheck"]
    assert "-h 127.0.0.1" in healthy["test"][1], "on its socket the image answers before it takes connections"
    assert healthy["start_period"] == "60s"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name
    text = unit.read_text(encoding="utf-8")
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE), encoding="utf-8")
    done = subprocess.run(
        [tool, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=120, check=False
    )
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert said == [], done.stderr


# --- the workflow of a release --------------------------------------------------------------------------------------

RELEASE: dict[str, Any] = yaml.safe_load((DEPLOY.parent / ".github/workflows/release.yml").read_text(encoding="utf-8"))


def test_a_release_is_tested_on_each_python_with_every_server() -> None:
    """Its machine is not root's, so that the tests themselves can install nothing, and there a missing server fails."""
    tested, built = RELEASE["jobs"]["test"], RELEASE["jobs"]["build"]
    pythons = tested["strategy"]["matrix"]["python"]
    assert pythons[0] == ".".join(map(str, OLDEST))
    assert built["steps"][1]["with"]["python-version"].split() == pythons
    steps = [step["run"] for step in tested["steps"] if "run" in step]
    assert steps[-1] == "scripts/test --python ${{ matrix.python }}"
    source = Path(binaries.__file__).read_text(encoding="utf-8")
    packages = set(re.findall(r'(?:apt|_from_apt)\("([a-z-]+)"', source)) - {"chromium"}  # the machine has Chrome
    assert len(packages) > 5
    assert packages <= set(steps[0].split())
    assert built["needs"] == "test"
    assert RELEASE["jobs"]["publish"]["needs"] == "build"
    assert RELEASE["jobs"]["publish"]["permissions"]["id-token"] == "write"
