"""Embedders by name, asked over the wire, and what goes wrong there."""

import pytest

from helix_agents.domain.errors import DefinitionError, ModelOverloadedError, UnknownModelError
from helix_agents.domain.memory_search import similarity, unit_vector
from helix_agents.memory.hashing import HashingEmbedder
from helix_agents.ports.embeddings import open_embedder
from tests.support.provider_server import ProviderServer, Refusal


async def test_an_embedder_of_openai_is_asked_over_the_wire_and_its_refusal_is_sorted(server: ProviderServer) -> None:
    made = [{"object": "embedding", "index": n, "embedding": [n, 0.5]} for n in range(2)]
    body = {
        "object": "list",
        "model": "text-embedding-3-small",
        "data": made,
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }
    refusal = Refusal(status=429, body={"error": {"message": "too many"}}, headers={"x-should-retry": "false"})
    server.will(Refusal(status=200, body=body), refusal)
    embedder = open_embedder(
        "openai:text-embedding-3-small", base_url=f"{server.url}/v1", api_key="a-key", dimensions=2
    )
    try:
        vectors = await embedder.embed(["cats", "dogs"], purpose="document")
        assert [list(each) for each in vectors] == [[0, 0.5], [1, 0.5]]
        assert embedder.name == "openai:text-embedding-3-small/2"
        assert (server.asked["input"], server.asked["dimensions"]) == (["cats", "dogs"], 2)
        with pytest.raises(ModelOverloadedError) as refused:
            await embedder.embed(["cats"], purpose="query")
        assert refused.value.retryable
    finally:
        await embedder.close()  # pyright: ignore[reportAttributeAccessIssue]


def test_an_embedder_is_opened_by_its_name() -> None:
    assert open_embedder("hashing:64").name == HashingEmbedder(64).name == "hashing:64"
    assert open_embedder("google:gemini-embedding-001").name == "google:gemini-embedding-001"
    with pytest.raises(UnknownModelError, match="openai"):
        open_embedder("opnai:text-embedding-3-small")
    with pytest.raises(DefinitionError, match="hashing:256"):
        open_embedder("hashing:many")


async def test_the_hashing_embedder_finds_what_shares_parts_of_words() -> None:
    made = await HashingEmbedder().embed(["colour", "colourful", "trains"], purpose="document")
    asked, near, far = map(unit_vector, made)
    assert similarity(asked, near) > 0.25 > abs(similarity(asked, far))
