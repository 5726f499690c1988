"""LiteLLM: with_litellm.py URL"""

import asyncio
import sys

import litellm
from pydantic import BaseModel

litellm.telemetry = False
options = {
    "model": "openai/smollm2",
    "api_base": sys.argv[1],
    "api_key": "-",
    "temperature": 0,
    "max_tokens": 60,
}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


class City(BaseModel):
    name: str
    country: str


answer = litellm.completion(messages=QUESTION, **options)
said = answer.choices[0].message.content
assert "Paris" in said and answer.usage.completion_tokens > 0
pieces = litellm.completion(messages=QUESTION, stream=True, **options)
assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == said
answer = asyncio.run(litellm.acompletion(messages=QUESTION, **options))
assert answer.choices[0].message.content == said

ask = [{"role": "user", "content": "Name a city and its country, as JSON."}]
answer = litellm.completion(messages=ask, response_format=City, **options)
City.model_validate_json(answer.choices[0].message.content)

tools = [{"type": "function", "function": {"name": "city", "parameters": City.model_json_schema()}}]
named = {"type": "function", "function": {"name": "city"}}
answer = litellm.completion(messages=ask, tools=tools, tool_choice=named, **options)
(call,) = answer.choices[0].message.tool_calls
assert call.function.name == "city" and City.model_validate_json(call.function.arguments)

text = litellm.text_completion(prompt="The capital of France is", **{**options, "max_tokens": 5})
assert "Paris" in text.choices[0].text
