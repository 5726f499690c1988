"""The openai client: with_openai.py URL"""

import json
import sys

import openai
from pydantic import BaseModel

client = openai.OpenAI(base_url=sys.argv[1], api_key="-")
model = client.models.list().data[0].id
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
greedy = {"model": model, "temperature": 0, "seed": 1}


class City(BaseModel):
    name: str
    country: str


class Weather(BaseModel):
    """The weather of a city."""

    city: str


# A chat, whole and streamed.
answer = client.chat.completions.create(messages=QUESTION, max_tokens=200, **greedy)
said = answer.choices[0].message
assert "Paris" in said.content and answer.usage.completion_tokens > 0
pieces = client.chat.completions.create(
    messages=QUESTION,
    max_tokens=200,
    stream=True,
    stream_options={"include_usage": True},
    **greedy,
)
chunks = list(pieces)
assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == said.content
assert chunks[-1].usage == answer.usage

# The stream helper, and an answer that goes back as it came.
with client.chat.completions.stream(messages=QUESTION, max_tokens=200, **greedy) as stream:
    deltas = [event.delta for event in stream if event.type == "content.delta"]
    assert (
        "".join(deltas) == said.content == stream.get_final_completion().choices[0].message.content
    )
more = [*QUESTION, said, {"role": "user", "content": "And of Italy?"}]
assert client.chat.completions.create(messages=more, max_tokens=200, **greedy).choices[0].message

# Answers of a type, whole and streamed.
ask = [{"role": "user", "content": "Name a city and its country, as JSON."}]
parsed = client.chat.completions.parse(messages=ask, response_format=City, **greedy)
assert isinstance(parsed.choices[0].message.parsed, City)
with client.chat.completions.stream(messages=ask, response_format=City, **greedy) as stream:
    assert (
        stream.get_final_completion().choices[0].message.parsed == parsed.choices[0].message.parsed
    )

# Tools: a call that is forced, streamed too, and what comes of it.
tools = [openai.pydantic_function_tool(Weather)]
question = [{"role": "user", "content": "What is the weather in Paris?"}]
called = client.chat.completions.parse(
    messages=question, tools=tools, tool_choice="required", parallel_tool_calls=False, **greedy
).choices[0]
(call,) = called.message.tool_calls
assert called.finish_reason == "tool_calls" and isinstance(call.function.parsed_arguments, Weather)
with client.chat.completions.stream(
    messages=question, tools=tools, tool_choice="required", parallel_tool_calls=False, **greedy
) as stream:
    (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert json.loads(streamed.function.arguments) == json.loads(call.function.arguments)
question += [called.message, {"role": "tool", "tool_call_id": call.id, "content": "It snows."}]
answer = client.chat.completions.create(messages=question, tools=tools, max_tokens=60, **greedy)
assert answer.choices[0].message.content

# Responses: whole, streamed, of a type, and with a call.
ask = {"input": QUESTION, "model": model, "temperature": 0}
answer = client.responses.create(max_output_tokens=200, **ask)
assert "Paris" in answer.output_text and answer.usage.output_tokens > 0
with client.responses.stream(max_output_tokens=200, **ask) as stream:
    deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
assert "".join(deltas) == answer.output_text
assert isinstance(client.responses.parse(text_format=City, **ask).output_parsed, City)
tools = [openai.pydantic_function_tool(Weather)["function"] | {"type": "function"}]
(call,) = client.responses.create(
    tools=tools, tool_choice="required", parallel_tool_calls=False, **ask
).output
Weather.model_validate_json(call.arguments)
given = [*QUESTION, call, {"type": "function_call_output", "call_id": call.call_id, "output": "-"}]
assert client.responses.create(tools=tools, max_output_tokens=200, **{**ask, "input": given}).output

# Plain texts.
text = client.completions.create(prompt="The capital of France is", max_tokens=5, **greedy)
assert "Paris" in text.choices[0].text
pieces = client.completions.create(
    prompt="The capital of France is", max_tokens=5, stream=True, **greedy
)
assert "".join(c.choices[0].text for c in pieces) == text.choices[0].text

# What the model cannot do is an error of the client's.
try:
    client.embeddings.create(model=model, input="a")
except openai.BadRequestError as error:
    assert "vector" in str(error)
else:
    raise AssertionError("SmolLM2 makes no vectors")
