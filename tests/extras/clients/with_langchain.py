"""LangChain: with_langchain.py URL"""

import asyncio
import sys

from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

common = {"base_url": sys.argv[1], "api_key": "-", "model": "smollm2", "temperature": 0}
chat = ChatOpenAI(max_tokens=60, seed=1, **common)
QUESTION = "What is the capital of France?"


class City(BaseModel):
    """A city."""

    name: str
    country: str


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"In {city} it snows."


answer = chat.invoke(QUESTION)
assert "Paris" in answer.content and answer.usage_metadata["output_tokens"] > 0
whole = None
for piece in chat.stream(QUESTION, stream_usage=True):
    whole = piece if whole is None else whole + piece
assert (whole.content, whole.usage_metadata) == (answer.content, answer.usage_metadata)
assert [x.content for x in chat.batch([QUESTION] * 3)] == [answer.content] * 3
assert asyncio.run(chat.ainvoke([("system", "Answer in one word."), ("user", QUESTION)])).content

for method in ("json_schema", "function_calling"):
    city = chat.with_structured_output(City, method=method).invoke("Name a city and its country.")
    assert isinstance(city, City), method
assert isinstance(
    chat.with_structured_output(method="json_mode").invoke("A JSON object, please."), dict
)

forced = chat.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False)
called = forced.invoke("What is the weather in Paris?")
(call,) = called.tool_calls
assert call["name"] == "weather" and isinstance(call["args"]["city"], str)
streamed = None
for piece in forced.stream("What is the weather in Paris?"):
    streamed = piece if streamed is None else streamed + piece
assert streamed.tool_calls[0]["args"] == call["args"]
result = weather.invoke(call)
assert isinstance(result, ToolMessage)
assert chat.bind_tools([weather]).invoke(["What is the weather in Paris?", called, result]).content

assert "Paris" in OpenAI(max_tokens=5, **common).invoke("The capital of France is")
