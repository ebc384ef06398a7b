"""The bytes of an answer without text: embeddings, rankings and scores, as vLLM 0.32 writes them. Pure."""

from random import Random
from typing import Any

from probe.mock_server.wire import MockResponse, dumps

VECTOR_LENGTH = 64


def embeddings_body(answer: MockResponse) -> str:
    """Return the answer of /v1/embeddings: a vector of length 1, as far as it was computed in 64 bits."""
    source = Random(answer.seed)
    raw = [source.gauss(0.0, 1.0) for _ in range(VECTOR_LENGTH)]
    norm = sum(value * value for value in raw) ** 0.5
    vector = {"index": 0, "object": "embedding", "embedding": [value / norm for value in raw]}
    return dumps({**_head(answer, "embd"), "data": [vector], "usage": _usage(answer)})


def score_body(answer: MockResponse) -> str:
    """Return the answer of /v1/score."""
    data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(_scores(answer))]
    return dumps({**_head(answer, "score"), "data": data, "usage": _usage(answer)})


def rerank_body(answer: MockResponse) -> str:
    """Return the answer of /v1/rerank, best first."""
    tokens = answer.request.prompt_tokens
    results = [
        {"index": i, "document": {"text": text, "multi_modal": None}, "relevance_score": score}
        for i, (text, score) in enumerate(zip(answer.request.texts, _scores(answer), strict=True))
    ]
    results.sort(key=lambda each: -float(str(each["relevance_score"])))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return dumps({"id": f"score-{answer.id}", "model": answer.model, "usage": usage, "results": results})


def _scores(answer: MockResponse) -> list[float]:
    source = Random(answer.seed)
    return [source.random() for _ in answer.request.texts]


def _head(answer: MockResponse, prefix: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{answer.id}", "object": "list", "created": answer.created, "model": answer.model}


def _usage(answer: MockResponse) -> dict[str, Any]:
    tokens = answer.request.prompt_tokens
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, **details}
