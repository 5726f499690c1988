"""LlamaIndex: with_llama_index.py URL"""

import asyncio
import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

llm = OpenAILike(
    model="smollm2",
    api_base=sys.argv[1],
    api_key="-",
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    context_window=8192,
    max_tokens=60,
    temperature=0,
)
QUESTION = [ChatMessage(role="user", content="What is the capital of France?")]


class City(BaseModel):
    """A city."""

    name: str
    country: str


def weather(city: str) -> str:
    """The weather of a city."""
    return f"In {city} it snows."


answer = llm.chat(QUESTION).message.content
assert "Paris" in answer
assert [piece.message.content for piece in llm.stream_chat(QUESTION)][-1] == answer
assert asyncio.run(llm.achat(QUESTION)).message.content == answer
assert "Paris" in llm.complete("What is the capital of France?").text

city = llm.as_structured_llm(City).chat([ChatMessage(role="user", content="Name a city.")]).raw
assert isinstance(city, City)

tools = [FunctionTool.from_defaults(weather)]
called = llm.chat_with_tools(tools, user_msg="The weather in Paris?", tool_required=True)
(call,) = llm.get_tool_calls_from_response(called)
assert call.tool_name == "weather" and isinstance(call.tool_kwargs["city"], str)
