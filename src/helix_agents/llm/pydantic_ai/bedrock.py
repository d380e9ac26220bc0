"""Amazon Bedrock: a client of AWS's own library, which makes one attempt and can be closed."""

# AWS's library comes without types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import os
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import NoRegionError
from botocore.session import Session
from botocore.tokens import FrozenAuthToken
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.bedrock import BedrockProvider

# A model may think for minutes before it says anything.
_READ_SECONDS = 600
_CONNECT_SECONDS = 10


class BedrockConnection:
    """The connections to Bedrock in one region."""

    def __init__(self, *, api_key: str | None, base_url: str | None) -> None:
        config = Config(
            read_timeout=_READ_SECONDS,
            connect_timeout=_CONNECT_SECONDS,
            # Only the engine retries.
            retries={"total_max_attempts": 1, "mode": "standard"},
            signature_version=None if api_key is None else "bearer",
        )
        session = boto3.Session(
            botocore_session=None if api_key is None else _KeySession(api_key),
            # AWS sets this one where it runs programs, but its library for Python reads only AWS_DEFAULT_REGION.
            region_name=os.environ.get("AWS_REGION"),
        )
        try:
            self._client: Any = session.client("bedrock-runtime", endpoint_url=base_url, config=config)
        except NoRegionError as problem:
            raise UserError("the AWS region is not known; set AWS_REGION") from problem

    def model(self, name: str) -> Model[Any]:
        """A model of Bedrock that uses these connections."""
        return BedrockConverseModel(name, provider=BedrockProvider(bedrock_client=self._client))

    async def aclose(self) -> None:
        """Close the connections."""
        self._client.close()


class _KeySession(Session):
    """Signs with an API key of Bedrock in place of AWS credentials."""

    def __init__(self, api_key: str) -> None:
        super().__init__()
        self._api_key = api_key

    def get_auth_token(self, **_: Any) -> FrozenAuthToken:
        return FrozenAuthToken(self._api_key)

    def get_credentials(self) -> None:
        return None
