"""The Dockerfile and the list of what it sees. No engine runs here: these are properties of the text."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from probe import __version__


@pytest.fixture(scope="module")
def instructions(deploy: Path) -> list[tuple[str, str]]:
    """Return pairs of instruction and arguments, with continued lines joined and without comments."""
    text = re.sub(r"^\s*#.*\n", "", (deploy / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", "").splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line.strip()]


@pytest.fixture(scope="module")
def final(instructions: list[tuple[str, str]]) -> list[tuple[str, str]]:
    last = max(i for i, (name, _) in enumerate(instructions) if name == "FROM")
    return instructions[last:]


def one(stage: list[tuple[str, str]], name: str) -> str:
    (arguments,) = (arguments for instruction, arguments in stage if instruction == name)
    return arguments


def test_every_stage_starts_from_the_argument(instructions: list[tuple[str, str]]) -> None:
    assert instructions[0][0] == "ARG"
    pinned = r"BASE=docker\.io/library/python:3\.13(\.\d+)?-slim(-[a-z]+)?@sha256:[0-9a-f]{64}"
    assert re.fullmatch(pinned, instructions[0][1])
    assert [a.split()[0] for name, a in instructions if name == "FROM"] == ["${BASE}", "${BASE}"]


def test_it_runs_as_a_numeric_user_other_than_root(final: list[tuple[str, str]]) -> None:
    assert one(final, "USER") == "65532:65532"
    names = [name for name, _ in final]
    assert not {"RUN", "COPY"} & set(names[names.index("USER") :])


def test_signals_reach_kneewatch_itself(final: list[tuple[str, str]]) -> None:
    assert json.loads(one(final, "ENTRYPOINT")) == ["kneewatch"]
    assert json.loads(one(final, "CMD")) == ["run", "-c", "/etc/kneewatch/kneewatch.yml"]


def test_the_final_stage_takes_only_the_environment(final: list[tuple[str, str]]) -> None:
    assert one(final, "COPY") == "--from=build /opt/kneewatch /opt/kneewatch"
    (run,) = (arguments for name, arguments in final if name == "RUN")
    assert "install" not in run.replace("install -d", "")


def test_it_runs_on_a_read_only_root(final: list[tuple[str, str]]) -> None:
    assert "PYTHONDONTWRITEBYTECODE=1" in one(final, "ENV")
    assert "HOME=/tmp" in one(final, "ENV")
    assert json.loads(one(final, "VOLUME")) == ["/var/lib/kneewatch"]


def test_versions_are_the_pinned_ones(instructions: list[tuple[str, str]]) -> None:
    (build,) = (arguments for name, arguments in instructions if name == "RUN" and '".[' in arguments)
    assert "--constraint constraints.txt" in build
    assert "--no-cache-dir" in build
    others = [a for name, a in instructions if name == "RUN" and "pip install" in a and a != build]
    assert all(re.search(r"==\$\{[A-Z]+\}", arguments) for arguments in others)


def test_every_package_of_the_image_has_its_hash(instructions: list[tuple[str, str]], deploy: Path) -> None:
    (build,) = (arguments for name, arguments in instructions if name == "RUN" and '".[' in arguments)
    assert build.index("--require-hashes -r requirements.txt") < build.index('".[')
    lines = (deploy / "image/requirements.txt").read_text().replace("\\\n", "").splitlines()
    hashed = {line.split()[0].lower(): line.split()[1:] for line in lines if not line.startswith("#")}
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for each in hashed.values() for one in each)
    assert all(hashed.values())
    pinned = {_normal(line) for line in (deploy.parent / "constraints.txt").read_text().splitlines()}
    assert {_normal(name) for name in hashed} <= pinned
    project = tomllib.loads((deploy.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = {re.split(r"[\[<>=]", one)[0] for one in [*project["dependencies"], *extras["k8s"], *extras["nvml"]]}
    assert {_normal(name) for name in named} <= {_normal(name).partition("==")[0] for name in hashed}


def _normal(requirement: str) -> str:
    """Return a requirement with its name as PyPI normalizes it."""
    name, equals, version = requirement.partition("==")
    return re.sub(r"[-_.]+", "-", name).lower() + equals + version


def test_of_others_wheels_are_installed_and_no_compiler_is_left(
    instructions: list[tuple[str, str]], final: list[tuple[str, str]]
) -> None:
    runs = [arguments for name, arguments in instructions if name == "RUN"]
    installs = [one for run in runs for one in run.split("&&") if "pip --python" in one]
    assert installs
    assert all("--only-binary :all:" in one for one in installs)
    assert ["KNEEWATCH_COMPILE=require" in one for one in installs] == [
        "requirements.txt" not in one for one in installs
    ]
    assert not any(re.search(r"\b(gcc|g\+\+|clang|build-essential|cargo)\b", words) for _, words in final)


def test_the_extras_that_the_shapes_need_are_in_it(instructions: list[tuple[str, str]], deploy: Path) -> None:
    (asked,) = {a.removeprefix("EXTRAS=") for name, a in instructions if name == "ARG" and a.startswith("EXTRAS=")}
    extras = tomllib.loads((deploy.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(asked.split(",")) == {"k8s", "nvml"} <= extras.keys()
    (build,) = (a for name, a in instructions if name == "RUN" and '".[' in a)
    assert '".[${EXTRAS}]"' in build
    # Declared in the stage that installs, and before it: else it would be empty there.
    names = [a if name == "ARG" else name for name, a in instructions]
    assert names.index("FROM") < names.index(f"EXTRAS={asked}") < instructions.index(("RUN", build))
    # The section on Ray builds an image with more, and with none less.
    (more,) = re.findall(r"--build-arg EXTRAS=(\S+)", (deploy.parent / "docs/integrations.md").read_text())
    assert {*asked.split(","), "ray"} == set(more.split(",")) <= extras.keys()


def test_the_image_has_an_sbom_of_its_packages(instructions: list[tuple[str, str]]) -> None:
    (build,) = (arguments for name, arguments in instructions if name == "RUN" and '".[' in arguments)
    assert "cyclonedx-py environment" in build
    assert "--output-file /opt/kneewatch/share/sbom/" in build
    # Before slim.sh, which is the last: it is about all that was installed.
    assert build.index("cyclonedx-py") < build.index("slim.sh")


def test_the_label_is_this_version(final: list[tuple[str, str]]) -> None:
    assert ("ARG", f"VERSION={__version__}") in final
    assert "${VERSION}" in one(final, "LABEL")


def test_the_health_check_is_a_program_that_compiles(final: list[tuple[str, str]]) -> None:
    arguments = one(final, "HEALTHCHECK")
    command = json.loads(arguments[arguments.index("CMD ") + len("CMD ") :])
    assert command[:2] == ["python", "-c"]
    compile(command[2], "HEALTHCHECK", "exec")
    assert "'127.0.0.1', 9876" in command[2]
    assert "/-/healthy" in command[2]


def test_copied_files_exist_and_are_not_ignored(instructions: list[tuple[str, str]], deploy: Path) -> None:
    ignored = (deploy.parent / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    copied = [a.split()[:-1] for name, a in instructions if name == "COPY" and not a.startswith("--from")]
    for source in (source for sources in copied for source in sources):
        assert f"!{source}" in ignored
        assert (deploy.parent / source).exists(), source


def test_every_package_of_the_wheel_is_copied(instructions: list[tuple[str, str]], deploy: Path) -> None:
    packages = {init.parent.name for init in deploy.parent.glob("*/__init__.py")}
    copied = {a.split()[0] for name, a in instructions if name == "COPY"}
    assert packages
    assert packages <= copied
