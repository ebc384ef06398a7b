"""The image is built, and its program watches a server with the restrictions of the pod: see container.py."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence

import httpx
import pytest
import yaml
from container import ROOT, Container, Image, Pod
from monitor import Sim, answers
from process import eventually

from probe import __version__
from probe.runtime.kept_program import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.getuid() != 0, reason="makes a Debian and a container: needs root"),
]

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def image(container_programs: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    assert container_programs  # else the tests are skipped
    folder = tmp_path_factory.mktemp("image")
    made = Image(folder)
    made.build(REVISION=COMMIT)
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)  # pytest keeps folders of three runs


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    with Sim(tmp_path_factory.mktemp("sim"), "tiny") as sim:
        yield sim


@pytest.fixture(scope="module")
def pages() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def container(image: Image, server: Sim, pages: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """Return the running monitor, with the configuration of the base for this server."""
    folder = tmp_path_factory.mktemp("pod")
    pod = Pod.of_the_base()
    folders = {mount["name"]: folder / mount["name"] for mount in pod.mounts}
    for name, volume in folders.items():
        volume.mkdir()
        if name != "config":
            os.chown(volume, 65532, 65532)  # fsGroup of the pod
    config = yaml.safe_load((ROOT / "deploy/kustomize/base/kneewatch.yml").read_text())
    config["listen"] = pages
    config["targets"][0]["base_url"] = server.base_url
    config["targets"][0]["canary"]["every"] = "2s"
    (folders["config"] / "kneewatch.yml").write_text(yaml.safe_dump(config))
    for path in (folder, *folder.parents):
        if path.is_relative_to(tmp_path_factory.getbasetemp().parent):
            path.chmod(path.stat().st_mode | 0o055)  # pytest's folders are closed to other users
    running = Container(image, pod, folders, folder / "bundle")
    running.process.ready(lambda: answers(f"http://{pages}/-/healthy"), within_s=60)
    yield running
    assert running.process.alive, running.process.tail()
    assert running.stop() == 0, running.process.tail()
    assert (folders["store"] / "kneewatch.db").exists()


@pytest.mark.usefixtures("container")
def test_it_measures_a_server_and_is_scraped(pages: str) -> None:
    up = re.compile(r'^kneewatch_target_up\{.*target="llama-8b".*\} 1\.0$', re.MULTILINE)

    def scraped() -> bool:
        return bool(up.search(httpx.get(f"http://{pages}/metrics", trust_env=False).text))

    eventually(scraped, within_s=60, what="a canary")


def test_it_has_the_restrictions_of_the_pod(container: Container) -> None:
    status = container.status()
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"65532"}
    assert [int(status[f"Cap{kind}"], 16) for kind in ("Eff", "Prm", "Bnd", "Inh", "Amb")] == [0] * 5
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    write = "import sys; open(sys.argv[1], 'w').write('x')"
    for path in ("/var/lib/kneewatch/x", "/tmp/x"):  # noqa: S108 - in the container
        container.exec("python", "-c", write, path)
    for path in ("/x", "/opt/kneewatch/x", "/var/x", "/etc/kneewatch/x"):
        assert "Error" in container.exec("python", "-c", write, path, fails=True), path


def test_a_capacity_run_has_all_that_it_needs(container: Container, server: Sim) -> None:
    """Its worker and helper processes too, and the numerical libraries that slim.sh has thinned."""
    levels = "--workers 2 --concurrency 2,4 --step-seconds 3 --output-tokens 32 --confirm-seconds 0"
    said = container.exec("kneewatch", "ramp", "--base-url", server.base_url, *levels.split(), timeout_s=120)
    assert "Capacity:" in said


def test_doctor_forecasts_in_it(container: Container, server: Sim) -> None:
    said = container.exec("kneewatch", "doctor", "--base-url", server.base_url, "--seconds", "15", timeout_s=120)
    assert "Healthy:" in said


def test_the_health_check_of_docker_succeeds(container: Container, image: Image, pages: str) -> None:
    kind, *command = image.config()["Healthcheck"]["Test"]
    assert kind == "CMD"
    port = pages.rpartition(":")[2]
    container.exec(*(word.replace("9876", port) for word in command))
    assert "Error" in container.exec(*(word.replace("9876", "1") for word in command), fails=True)


def test_it_tells_what_it_is(container: Container, image: Image) -> None:
    assert container.exec("kneewatch", "--version") == f"kneewatch {__version__} ({COMMIT})\nsimulator: compiled\n"
    config = image.config()
    assert config["User"] == "65532:65532"
    assert config["Labels"]["org.opencontainers.image.revision"] == COMMIT
    listed = json.loads(container.exec("cat", "/opt/kneewatch/share/sbom/kneewatch.cdx.json"))["components"]
    assert {"kneewatch", "numpy", "lightkube", "nvidia-ml-py"} <= {one["name"] for one in listed}


def test_no_compiler_is_in_it_and_no_pip_in_its_environment(container: Container) -> None:
    code = "import shutil; print([name for name in ('gcc', 'cc') if shutil.which(name)])"
    assert container.exec("python", "-c", code) == "[]\n"
    assert "No module named pip" in container.exec("python", "-m", "pip", fails=True)
