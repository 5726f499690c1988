"""The server's scores of pairs of texts: /v1/rerank and /v1/score."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import classifiers
import httpx
import numpy as np
import pytest
from conftest import STORIES, Server

import export
import heads
from heads._reading import pair_reading

QUERY, DOCUMENTS = "hello fox", ["zz top", "hello world", "a", "fox " * 60]


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranker")
    source = classifiers.make("reranker", folder / "hf")
    assert export.main([str(source), str(folder / "reranker.bin"), "--dtype", "f32"]) == 0
    return folder / "reranker.bin"


@pytest.fixture(scope="module")
def server(binary):
    server = Server(binary)
    yield server
    server.stop()


def ask(server, path: str, **body) -> httpx.Response:
    return httpx.post(f"{server.url}/{path}", json=body, timeout=60)


def test_rerank_is_the_modules(server, binary):
    """In Cohere's shape and in Jina's, where a document may be an object."""
    with heads.Model(binary) as m:
        want = m.rank(QUERY, DOCUMENTS)
        n = sum(len(pair_reading(m, (QUERY, text)).ids) for text in DOCUMENTS)
    for path in ("v1/rerank", "v2/rerank", "rerank"):
        answer = ask(server, path, model="reranker", query=QUERY, documents=DOCUMENTS).json()
        assert [(x["index"], x["relevance_score"]) for x in answer["results"]] == want
        assert all(x["document"] == {"text": DOCUMENTS[x["index"]]} for x in answer["results"])
        assert answer["usage"] == {"prompt_tokens": n, "total_tokens": n}
        assert answer["model"] == "reranker" and answer["id"].startswith("rerank-")
        assert answer["truncated"] == 1
    refused = ask(server, "rerank", query=QUERY, documents=DOCUMENTS, truncate=False)
    assert refused.status_code == 400 and "documents[3] has 191 tokens" in refused.text
    given = [{"text": text} for text in DOCUMENTS]
    few = ask(server, "v1/rerank", query=QUERY, documents=given, top_n=2, return_documents=False)
    assert few.json()["results"] == [{"index": i, "relevance_score": s} for i, s in want[:2]]


def test_score_is_the_modules(server, binary):
    with heads.Model(binary) as m:
        want = [m.classify((QUERY, text))[0].score for text in DOCUMENTS]
        turned = [m.classify((text, QUERY))[0].score for text in DOCUMENTS]
    answer = ask(server, "v1/score", text_1=QUERY, text_2=DOCUMENTS).json()
    assert [(x["index"], x["object"], x["score"]) for x in answer["data"]] == [
        (i, "score", score) for i, score in enumerate(want)
    ]
    assert answer["object"] == "list"
    both = ask(server, "v1/score", text_1=DOCUMENTS, text_2=[QUERY] * len(DOCUMENTS)).json()
    assert [x["score"] for x in both["data"]] == turned != want


def test_many_clients_and_vectors_beside_scores(server, binary):
    """They share steps, and each has its own numbers."""
    texts = [f"{word} fox" * n for n in range(1, 5) for word in ("a", "hello", "zz")]
    with heads.Model(binary) as m:
        want = [m.classify((text, "fox"))[0].score for text in texts]
        vectors = m.embed(texts)

    def work(i: int):
        if i % 2:
            data = ask(server, "v1/embeddings", input=texts).json()["data"]
            return np.array_equal(np.array([x["embedding"] for x in data], np.float32), vectors)
        data = ask(server, "v1/score", text_1=texts, text_2=["fox"] * len(texts)).json()["data"]
        return [x["score"] for x in data] == want

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(24)))


@pytest.mark.parametrize(
    "path, body, param, says",
    [
        ("v1/rerank", {"documents": ["a"]}, "query", "expected a string"),
        ("v1/rerank", {"query": "a"}, "documents", "expected an array"),
        ("v1/rerank", {"query": "a", "documents": []}, "documents", "expected an array"),
        ("v1/rerank", {"query": "a", "documents": [{"t": 1}]}, "documents", "expected an array"),
        ("v1/rerank", {"query": "a", "documents": ["a"] * 2049}, "documents", "at most 2048"),
        ("v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n", "from 1 to"),
        ("v1/rerank", {"query": "a", "documents": ["a"], "rank_fields": []}, "rank_fields", "unkn"),
        ("v1/score", {"text_1": "a", "text_2": 5}, "text_2", "expected a string or"),
        ("v1/score", {"text_1": ["a", "b"], "text_2": "a"}, "text_2", "as many of both"),
        ("v1/score", {"text_1": "a", "text_2": "a", "encoding_format": "base64"}, None, "float"),
    ],
)
def test_what_is_refused(server, path, body, param, says):
    answer = ask(server, path, **body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and says in error["message"]
    assert param is None or error["param"] == param


def test_models_without_such_a_head():
    server = Server(STORIES)
    try:
        for path, body in (
            ("v1/rerank", {"query": "a", "documents": ["b"]}),
            ("v1/score", {"text_1": "a", "text_2": "b"}),
        ):
            answer = ask(server, path, **body)
            assert answer.status_code == 400 and "that needs a cross-encoder's" in answer.text
    finally:
        server.stop()
