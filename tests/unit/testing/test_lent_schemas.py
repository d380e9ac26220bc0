"""A schema that is lent to a test is taken back, whatever the test did with it."""

from helix_agents.testing.postgres_service import Schemas


def test_a_schema_in_which_nothing_was_opened_can_be_given_back(postgres_schemas: Schemas) -> None:
    """As by a test that failed before: its own error is the one to be seen."""
    url = postgres_schemas._service.new_url()  # pyright: ignore[reportPrivateUsage]
    postgres_schemas.take_back(url)
    assert postgres_schemas.lend() == url
    postgres_schemas.take_back(url)
