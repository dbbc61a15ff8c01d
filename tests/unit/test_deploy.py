"""The Dockerfile and docker-compose.yml, as far as they can be checked without a Docker engine."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from jsonschema import Draft7Validator
from pydantic import BaseModel

from models.section import Section
from models.settings import ALIASES, ProcessingSettings, Settings, WatcherSettings
from webhook.app import REQUESTS_END_WITHIN

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "tests" / "support" / "compose-spec.json"
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "paylatch"}
DOCKERFILE = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
PUBLIC_PORT = 8080
LOOPBACK = "127.0.0.1"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
_SECONDS = re.compile(r"(\d+)s")


def _instructions(keyword: str) -> list[str]:
    """The arguments of every such instruction of the Dockerfile's last stage."""
    stage = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") + 1 :]
    return re.findall(rf"^{keyword} (.*)$", stage, re.MULTILINE)


def _setting_names(model: type[BaseModel], prefix: str = "PAYLATCH_") -> Iterator[str]:
    for name, field in model.model_fields.items():
        here = prefix + (field.alias or name).upper()
        kinds = (field.annotation, *get_args(field.annotation))
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        if sections:
            yield from _setting_names(sections[0], here + "__")
        else:
            yield here


def _published() -> Iterator[tuple[str, str, int]]:
    """Service, host address and container port of everything the host shows; defaults of variables filled in."""
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            address, _, inside = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", port).split(":")
            yield name, address, int(inside)


# Compose


def test_compose_fits_the_compose_specification() -> None:
    schema = json.loads(SCHEMA.read_text())
    problems = [f"{error.json_path}: {error.message}" for error in Draft7Validator(schema).iter_errors(COMPOSE)]
    assert problems == []


def test_compose_has_all_services() -> None:
    assert set(SERVICES) == {"mongo", "indexes", "webhook", "watcher", "mail"}
    assert set(OURS) == {"indexes", "webhook", "watcher"}


def test_only_the_webhook_endpoint_can_be_shown_to_other_machines() -> None:
    published = list(_published())
    assert ("webhook", LOOPBACK, PUBLIC_PORT) in published
    assert {address for _, address, _ in published} == {LOOPBACK}
    movable = [port for service in SERVICES.values() for port in service.get("ports", ()) if port.startswith("$")]
    assert [port.rpartition(":")[2] for port in movable] == [str(PUBLIC_PORT)]


def test_published_ports_are_those_that_the_processes_listen_on() -> None:
    environment = SERVICES["webhook"]["environment"]
    inside = {port for name, _, port in _published() if name == "webhook"}
    assert inside == {int(environment["PAYLATCH_HTTP__PORT"]), int(environment["PAYLATCH_HTTP__PRIVATE_PORT"])}
    watcher = SERVICES["watcher"]["environment"]
    assert {port for name, _, port in _published() if name == "watcher"} == {
        int(watcher["PAYLATCH_WATCHER__PRIVATE_PORT"])
    }


@pytest.mark.parametrize("name", ["webhook", "watcher"])
def test_a_stop_leaves_time_to_drain(name: str) -> None:
    grace = _SECONDS.fullmatch(SERVICES[name]["stop_grace_period"])
    assert grace
    drain = {"webhook": ProcessingSettings().drain + REQUESTS_END_WITHIN, "watcher": WatcherSettings().drain}[name]
    assert int(grace[1]) >= drain + 10, "the rest of the shutdown takes a few seconds too"


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_containers_have_no_rights_to_spare(name: str) -> None:
    service = OURS[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert not {"privileged", "user", "cap_add", "volumes", "network_mode"} & set(service)


@pytest.mark.parametrize("name", ["webhook", "watcher"])
def test_a_process_starts_after_the_indexes_and_again_after_a_crash(name: str) -> None:
    assert OURS[name]["depends_on"]["indexes"] == {"condition": "service_completed_successfully"}
    assert OURS[name]["depends_on"]["mongo"] == {"condition": "service_healthy"}
    assert OURS[name]["restart"] == "unless-stopped"


def test_the_indexes_are_a_step_that_ends() -> None:
    assert OURS["indexes"]["depends_on"] == {"mongo": {"condition": "service_healthy"}}
    assert "restart" not in OURS["indexes"]


def test_mongo_is_a_replica_set_that_is_healthy_only_as_primary() -> None:
    mongo = SERVICES["mongo"]
    assert mongo["image"] == "mongo:8"
    assert mongo["command"][1:3] == ["--replSet", "rs0"]
    assert "transactionLifetimeLimitSeconds=10" in mongo["command"]
    assert mongo["volumes"] == ["mongo-data:/data/db"]
    check = mongo["healthcheck"]["test"][-1]
    assert 'rs.initiate({_id: "rs0", members: [{_id: 0, host: "mongo:27017"}]})' in check
    assert check.endswith("if (!db.hello().isWritablePrimary) quit(1)")
    assert "mongo:27017/?replicaSet=rs0" in OURS["webhook"]["environment"]["PAYLATCH_MONGODB__URI"]


def test_the_webhook_secret_has_no_default_and_says_so() -> None:
    required = re.findall(r"\$\{(\w+):\?([^}]+)\}", COMPOSE_TEXT)
    assert [name for name, _ in required] == ["PAYLATCH_RAZORPAY__WEBHOOK_SECRETS"]
    assert ".env" in required[0][1]


def test_every_other_variable_has_a_default() -> None:
    without = re.findall(r"\$\{(\w+)\}|\$([A-Za-z_]\w*)", COMPOSE_TEXT)
    assert without == []


def test_every_setting_that_compose_names_exists() -> None:
    known = set(_setting_names(Settings)) | {alias for aliases in ALIASES.values() for alias in aliases}
    named = {name for service in SERVICES.values() for name in service.get("environment", ())}
    named |= {name for name in _VARIABLE.findall(COMPOSE_TEXT) if name.startswith("PAYLATCH_")}
    assert named
    assert sorted(named - known) == []


def test_the_values_that_compose_sets_are_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in OURS["webhook"]["environment"].items():
        filled = '{"2026-01": "secret"}' if ":?" in value else re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)
        monkeypatch.setenv(name, filled)
    settings = Settings()
    assert (settings.email.host, settings.email.port) == ("mail", 1025)
    assert "mail" in SERVICES
    assert settings.http.private_host == settings.watcher.private_host == "0.0.0.0"


def _commands() -> Iterator[list[str]]:
    """What `paylatch` is started with, by the compose file and by the image."""
    for service in OURS.values():
        yield service["command"]
    yield json.loads(_instructions("CMD")[0])


@pytest.mark.parametrize("command", sorted({tuple(command) for command in _commands()}))
def test_every_command_is_one_of_paylatch(command: tuple[str, ...], tmp_path: Path) -> None:
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from scripts.cli import main; main()"
    line = [sys.executable, "-c", start, *command, "--help"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert command[0] in done.stdout


def _python_checks() -> Mapping[str, list[str]]:
    checks = {name: OURS[name]["healthcheck"]["test"][1:] for name in ("webhook", "watcher")}
    return {**checks, "image": json.loads(_instructions("HEALTHCHECK")[0].partition("CMD ")[2])}


@pytest.mark.parametrize(("name", "port", "path"), [
    ("webhook", 9080, "/readyz"),
    ("watcher", 9081, "/readyz"),
    ("image", 9080, "/livez"),
])  # fmt: skip
def test_a_health_check_is_python_that_asks_the_private_port(name: str, port: int, path: str) -> None:
    command = _python_checks()[name]
    assert command[:2] == ["python", "-c"]
    compile(command[2], name, "exec")
    assert path in command[2]
    assert str(port) in " ".join(command[2:])


# The image


def test_the_image_runs_as_a_fixed_user_without_rights() -> None:
    (user,) = _instructions("USER")
    uid, gid = (int(part) for part in user.split(":"))
    assert uid >= 10000
    assert gid >= 10000
    assert f"--uid {uid} " in DOCKERFILE
    assert DOCKERFILE.index("\nUSER ") > DOCKERFILE.rindex("\nRUN ")


def test_the_image_starts_and_stops_paylatch() -> None:
    assert _instructions("ENTRYPOINT") == ['["paylatch"]']
    assert _instructions("CMD") == ['["serve"]']
    assert _instructions("STOPSIGNAL") == ["SIGTERM"]
    assert "PYTHONUNBUFFERED=1" in DOCKERFILE


def test_the_image_carries_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"ARG VERSION={project['version']}" in DOCKERFILE
    assert f'licenses="{project["license"]}"' in DOCKERFILE


def test_the_image_is_built_from_the_constraints_and_without_extras() -> None:
    installs = re.findall(r"pip [^&\n]*install [^&\n]*", DOCKERFILE)
    assert installs
    assert all("--constraint constraints.txt" in line and "[" not in line for line in installs)


def test_the_build_context_holds_what_is_copied_and_no_secrets() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*", "nothing is sent to the build unless it is named"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
    copied = {source for line in copies for source in shlex.split(line)[:-1]}
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)
    assert not any(fnmatch.fnmatch(secret, rule) for rule in allowed for secret in (".env", ".git", "paylatch.toml"))


def test_every_package_of_the_wheel_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for package in packages:
        assert f"COPY {package} {package}\n" in DOCKERFILE
