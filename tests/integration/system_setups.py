"""Where each system stands, and what Kneewatch needs to know of it: one entry for each row of docs/systems.md."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import systems
from monitor import Sim


@dataclass(frozen=True)
class Placed:
    """A running system: its address, keys of the target and of the workload, and what its users send otherwise.

    `users`: how many a forecast is made of. `largest_id`: above all token ids that it takes. `counted_after_s`: how old
    its metrics are.
    """

    url: str
    target: Mapping[str, object] = field(default_factory=dict)
    workload: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    users: int = 6
    largest_id: int = 30_000
    counted_after_s: float = 3.0

    @property
    def is_by_stream(self) -> bool:
        """Whether its load is guarded by the stream alone."""
        return self.target.get("capacity") == _BY_STREAM["capacity"]


Setup = Callable[[Path], AbstractContextManager[Placed]]
_BY_STREAM = {"capacity": {"guard": "stream"}}
_LIMITS: dict[str, object] = {"capacity": {"server": {"max_num_seqs": 8}}}  # of the mock server, for a forecast


@contextmanager
def _sims(folder: Path, count: int) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Sim(folder / f"sim-{number}", "tiny")).base_url for number in range(count)]


def _pages(servers: list[str]) -> dict[str, object]:
    pages = [f"{each}/metrics" for each in servers]
    return _LIMITS | ({"metrics_urls": pages} if len(pages) > 1 else {"metrics_url": pages[0]})


def _litellm(*, has_page: bool) -> Setup:
    @contextmanager
    def placed(folder: Path) -> Iterator[Placed]:
        with _sims(folder, 1) as servers, systems.litellm(folder / "gateway", servers[0]) as url:
            target = {"model": "llama", "api_key": systems.KEY, "request": {"prompt": "text"}}
            target |= _pages(servers) if has_page else {"engine": "litellm", **_BY_STREAM}
            fields = {"model": "llama", "prompt": "word " * 64, "ignore_eos": True}
            yield Placed(url, target, headers={"Authorization": f"Bearer {systems.KEY}"}, fields=fields)

    return placed


def _router(start: Callable[..., AbstractContextManager[str]], count: int = 2, *, has_pages: bool = True) -> Setup:
    @contextmanager
    def placed(folder: Path) -> Iterator[Placed]:
        with _sims(folder, count) as servers, start(folder / "gateway", *servers) as url:
            by_pages = _pages(servers) if count > 1 else _LIMITS
            yield Placed(url, by_pages if has_pages else _BY_STREAM, users=6 * count)

    return placed


@contextmanager
def _ray_serve(folder: Path) -> Iterator[Placed]:
    with _sims(folder, 1) as servers, systems.ray_serve(folder / "gateway", servers[0]) as (url, page):
        yield Placed(url, {"metrics_url": page, **_BY_STREAM}, counted_after_s=15.0)


@contextmanager
def _kserve(folder: Path) -> Iterator[Placed]:
    with _sims(folder, 1) as servers, systems.kserve(folder / "gateway", servers[0]) as url:
        yield Placed(f"{url}/openai", _pages(servers))


@contextmanager
def _llama_cpp(folder: Path) -> Iterator[Placed]:
    folder.mkdir(parents=True)
    with systems.llama_cpp(folder / "server") as url:
        yield Placed(url, fields={"model": "llama"})


@contextmanager
def _dynamo(folder: Path) -> Iterator[Placed]:
    folder.mkdir(parents=True)
    with systems.dynamo(folder / "server") as url:
        yield Placed(url, fields={"model": "llama"}, users=14, largest_id=4_000)


@contextmanager
def _transformers(folder: Path) -> Iterator[Placed]:
    folder.mkdir(parents=True)
    with systems.transformers_serve(folder / "server") as (url, model):
        request = {"omit": ["ignore_eos"], "expect_done": False, "prompt": "text"}
        fields = {"model": model, "prompt": "word " * 64, "ignore_eos": None}
        yield Placed(url, {"model": model, "request": request, **_BY_STREAM}, fields=fields)


@contextmanager
def _vllm_data_parallel(folder: Path) -> Iterator[Placed]:
    folder.mkdir(parents=True)
    with systems.vllm_data_parallel(folder / "server") as url:
        yield Placed(url, fields={"model": "tiny"}, largest_id=4_000)


# By the name in the table: the system of systems.py, and how it is placed.
SETUPS: Mapping[str, tuple[str, Setup]] = {
    "LiteLLM (its own page)": ("litellm", _litellm(has_page=False)),
    "LiteLLM (the server's page)": ("litellm", _litellm(has_page=True)),
    "vllm-router (two servers, no page)": ("vllm-router", _router(systems.vllm_router, has_pages=False)),
    "vllm-router (two servers, both pages)": ("vllm-router", _router(systems.vllm_router)),
    "production stack's router (two servers, both pages)": ("production-stack", _router(systems.production_stack)),
    "Envoy (one server)": ("envoy", _router(systems.envoy, 1)),
    "Envoy (two servers, both pages)": ("envoy", _router(systems.envoy)),
    "vLLM with two data-parallel engines": ("vllm", _vllm_data_parallel),
    "Hugging Face `transformers serve`": ("transformers", _transformers),
    "KServe (a model that relays, the server's page)": ("kserve", _kserve),
    "Ray Serve": ("ray-serve", _ray_serve),
    "llama.cpp": ("llama.cpp", _llama_cpp),
    "NVIDIA Dynamo (frontend and mocker)": ("dynamo", _dynamo),
}
