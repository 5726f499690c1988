"""pydantic-ai: with_pydantic_ai.py URL"""

import asyncio
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=sys.argv[1], api_key="-")
model = OpenAIChatModel("smollm2", provider=provider)
settings = {"temperature": 0, "max_tokens": 100}


class City(BaseModel):
    """A city."""

    name: str
    country: str


agent = Agent(model, model_settings=settings, system_prompt="You are a helpful assistant.")
answer = agent.run_sync("What is the capital of France?")
assert "Paris" in answer.output and answer.usage.output_tokens > 0
again = agent.run_sync("And of Italy?", message_history=answer.all_messages())
assert again.output


async def streamed() -> str:
    async with agent.run_stream("What is the capital of France?") as stream:
        return "".join([piece async for piece in stream.stream_text(delta=True)])


assert asyncio.run(streamed()) == answer.output

for output in (NativeOutput(City), ToolOutput(City)):
    found = Agent(model, output_type=output, model_settings=settings).run_sync("Name a city.")
    assert isinstance(found.output, City)
