"""instructor: with_instructor.py URL"""

import sys

import instructor
import openai
from pydantic import BaseModel, Field


class Country(BaseModel):
    name: str = Field(max_length=30)


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=30)
    country: Country
    people: int = Field(ge=0, le=50_000_000)


client = openai.OpenAI(base_url=sys.argv[1], api_key="-")
ask = [{"role": "user", "content": "Name a city, its country, and how many people live there."}]
options = {"model": "smollm2", "messages": ask, "temperature": 0, "max_tokens": 200}

for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT):
    patched = instructor.from_openai(client, mode=mode)
    city = patched.chat.completions.create(response_model=City, **options)
    assert isinstance(city, City), mode
    *_, streamed = patched.chat.completions.create_partial(response_model=City, **options)
    assert City.model_validate(streamed.model_dump()), mode
