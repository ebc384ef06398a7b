"""Deployments of known capacity: a server, its workload and its objectives.

The named ones cover what can limit a server, and what a model of one may not know ("blind": a mechanism that neither
the server's metrics nor the model of probe/capacity show). `random_case` makes others, so that nothing can be tuned to
a list.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from probe.core.objectives import Objective, Objectives
from probe.core.request import Api
from probe.core.workload import LognormalLength, Workload
from probe.mock_server.profiles import PROFILES
from probe.simulator.cost import FrontEnd, Jitter, Profile, StepCost
from probe.simulator.virtual_server import BackgroundTraffic, VirtualServer


@dataclass(frozen=True, slots=True)
class Case:
    """One deployment. `users`: the request lengths of live users, if they differ from the workload's."""

    name: str
    profile: Profile
    workload: Workload
    objectives: Objectives
    users: Workload | None = None
    shares: tuple[float, ...] = (1.0,)
    accepted_tokens: float = 0.0
    users_weight: float = 1.0  # how many of the workload's requests one of the users' is worth, about
    blind: bool = False

    def server(self, seed: int, users_rps: float, workload: Workload | None = None) -> VirtualServer:
        """Return the server with live users at this rate, with `workload`'s lengths if given, else its users'."""
        return VirtualServer(
            self.profile,
            seed=seed,
            users=BackgroundTraffic(
                users_rps / (1.0 if workload else self.users_weight), workload or self.users or self.workload
            ),
            shares=self.shares,
            accepted_tokens=self.accepted_tokens,
        )


def _lengths(prompt: int, output: int, *, sigma: float = 0.5, shared: int = 0) -> Workload:
    return Workload(
        name="bench",
        api=Api.COMPLETIONS,
        prompt_tokens=LognormalLength(prompt, sigma, prompt * 6 if prompt < 2000 else round(prompt * 2.3)),
        output_tokens=LognormalLength(output, sigma, output * 6),
        shared_tokens=shared,
    )


def _promise(ttft_s: float, tpot_s: float) -> Objectives:
    return Objectives(name="bench", ttft=Objective(0.95, ttft_s), tpot=Objective(0.95, tpot_s))


_CHAT = _lengths(400, 150)
_LONG_ANSWERS = _lengths(200, 500)
_RAG = _lengths(3000, 150, sigma=0.4)
_SUMMARY = _lengths(6000, 60, sigma=0.4)
_SHORT = _lengths(120, 40)
_DOCUMENTS = _lengths(20_000, 100, sigma=0.5)
_SHARED = _lengths(2500, 150, sigma=0.3, shared=1600)
_TIGHT, _USUAL, _LOOSE = _promise(0.3, 0.025), _promise(0.5, 0.05), _promise(2.0, 0.1)


def _case(profile: str, workload: Workload, objectives: Objectives, suffix: str = "", **more: object) -> Case:
    return Case(profile + suffix, PROFILES[profile], workload, objectives, **more)  # type: ignore[arg-type]


_ALL = (
    _case("1b-l4", _CHAT, _USUAL),
    _case("8b-l4", _CHAT, _LOOSE),
    _case("1b-h100", _CHAT, _promise(0.2, 0.015)),
    _case("1b-h100", _SHORT, _promise(0.1, 0.01), "-short"),
    _case("8b-a100", _CHAT, _USUAL),
    _case("8b-a100", _RAG, _promise(1.0, 0.1), "-rag"),
    _case("8b-a100", _LONG_ANSWERS, _promise(0.5, 0.03), "-long-answers"),
    _case("8b-h100", _CHAT, _TIGHT),
    _case("8b-h100", _SUMMARY, _LOOSE, "-summary"),
    _case("8b-fp8", _CHAT, _promise(0.3, 0.02)),
    _case("14b-a100", _CHAT, _USUAL),
    _case("32b-h100", _CHAT, _USUAL),
    _case("32b-h100", _RAG, _LOOSE, "-rag"),
    _case("70b-h100", _CHAT, _USUAL),
    _case("70b-h100", _LONG_ANSWERS, _promise(1.0, 0.04), "-long-answers"),
    _case("70b-a100", _RAG, _LOOSE, "-rag"),
    _case("moe-h200", _CHAT, _promise(0.5, 0.03)),
    _case("kv-tight", _CHAT, _USUAL),
    _case("kv-tight", _RAG, _LOOSE, "-rag"),
    _case("kv-14b", _LONG_ANSWERS, _LOOSE),
    _case("kv-70b", _CHAT, _LOOSE),
    _case("seats-16", _CHAT, _USUAL),
    _case("seats-32", _CHAT, _USUAL),
    _case("seats-64", _LONG_ANSWERS, _promise(0.2, 0.02)),
    _case("chunk-512", _RAG, _promise(1.0, 0.08)),
    _case("chunk-8192", _RAG, _promise(1.5, 0.15)),
    _case("long-context", _DOCUMENTS, _promise(6.0, 0.3)),
    _case("rough", _CHAT, _USUAL),
    _case("drifting", _CHAT, _USUAL),
    _case("tiny", _SHORT, _promise(0.5, 0.05)),
    _case("llama-8b", _lengths(256, 64), _USUAL),
    _case("slow-front", _CHAT, _promise(0.2, 0.015), blind=True),
    _case("slow-stream", _CHAT, _promise(0.2, 0.02), blind=True),
    _case("tokenizer", _RAG, _promise(1.0, 0.1), blind=True),
    _case("prefix", _SHARED, _promise(1.0, 0.1), blind=True),
    _case("attention", _DOCUMENTS, _promise(8.0, 0.4), blind=True),
    _case("8b-a100", _CHAT, _USUAL, "-speculative", accepted_tokens=1.2, blind=True),
    _case("8b-a100", _CHAT, _USUAL, "-two-engines", shares=(0.5, 0.5), blind=True),
    _case("8b-h100", _CHAT, _TIGHT, "-uneven-engines", shares=(0.6, 0.4), blind=True),
    _case("8b-h100", _CHAT, _USUAL, "-other-users", users=_RAG, users_weight=6.0, blind=True),
)  # fmt: skip

CASES: Mapping[str, Case] = {case.name: case for case in _ALL}


def random_case(seed: int) -> Case:
    """Return a random deployment: sizes, limits, lengths and objectives drawn from realistic ranges."""
    source = random.Random(f"case {seed}")
    weights_s = 10 ** source.uniform(-3, -1.3)  # 1 to 50 ms
    cost = StepCost(
        host_s=10 ** source.uniform(-3, -2),
        per_sequence_s=10 ** source.uniform(-5, -4),
        per_token_s=weights_s * 10 ** source.uniform(-2.7, -1.9),
        weights_s=weights_s,
        per_kv_token_s=10 ** source.uniform(-8, -7),
        per_pair_s=10 ** source.uniform(-11, -9.5),
    )
    prompt, output = round(10 ** source.uniform(2, 3.6)), round(10 ** source.uniform(1.6, 2.6))
    longest = 8 * (prompt + output)
    profile = Profile(
        name=f"random-{seed}",
        description="drawn at random",
        cost=cost,
        max_num_seqs=source.choice((16, 32, 64, 128, 256, 512)),
        block_size=16,
        num_blocks=max(longest, round((prompt + output) * 10 ** source.uniform(1, 2.7))) // 16 + 2,
        max_num_batched_tokens=source.choice((1024, 2048, 4096, 8192)),
        max_model_len=longest,
        jitter=Jitter(noise_ratio=source.uniform(0.01, 0.06)),
    )
    workload = replace(_lengths(prompt, output, sigma=source.uniform(0.1, 0.6)), name=profile.name)
    # What a light load takes, times what a provider would allow.
    step_s = cost.host_s + weights_s
    ttft_s = (step_s + cost.per_token_s * prompt) * source.uniform(4, 15)
    return Case(profile.name, profile, workload, _promise(ttft_s, step_s * source.uniform(1.5, 4)))


def random_blind_case(seed: int) -> Case:
    """Return a random deployment with a mechanism that the model does not know."""
    case, source = random_case(seed), random.Random(f"blind {seed}")
    kind = source.choice(("front", "stream", "speculation", "engines", "prefix"))
    if kind == "front":
        front_end = FrontEnd(per_request_s=10 ** source.uniform(-2.3, -1.3))
        return replace(case, profile=replace(case.profile, front_end=front_end), blind=True)
    if kind == "stream":
        front_end = FrontEnd(per_output_token_s=10 ** source.uniform(-4.3, -3.5))
        return replace(case, profile=replace(case.profile, front_end=front_end), blind=True)
    if kind == "speculation":
        return replace(case, accepted_tokens=source.uniform(0.5, 2.0), blind=True)
    if kind == "engines":
        return replace(case, shares=(share := source.uniform(0.4, 0.6), 1 - share), blind=True)
    prompt = case.workload.prompt_tokens
    shared = round((prompt.median if isinstance(prompt, LognormalLength) else prompt) * source.uniform(0.3, 0.8))
    workload = replace(case.workload, shared_tokens=shared)
    return replace(case, workload=workload, profile=replace(case.profile, prefix_caching=True), blind=True)
