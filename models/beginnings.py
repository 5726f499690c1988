"""Beginnings of stories as people type them, drawn from templates and lists of words.

In a template, {kind} is a word of that list, drawn afresh each time. What is typed is not what was
thought of here, so lists are wide, some names are made up, and many beginnings are a stub of a word
or two that the teacher goes on from more freely than usual.
"""

from __future__ import annotations

import random
import re

WORDS = {
    "name": """Lily Max Anna Tim Sue Jack Emma Lucy Ella Noah Liam Olivia Sophie Grace Maya Ali Amir
        Fatima Yusuf Aisha Priya Arjun Ravi Mei Chen Kenji Yuki Sara Eva Paul Peter Mary John Kate
        Billy Molly Daisy Rose Alice Oscar Felix Hannah Lena Nina Carlos Maria Diego Luna Sofia
        Mateo Ana Pedro Ivan Olga Katya Freya Lars Emil Greta Hans Marie Pierre Chloe Luca Giulia
        Marco Zara Kwame Ama Abena Tariq Layla Nadia Hassan Samir David Ruth Adam Eve Daniel Sarah
        Josh Amy Beth Charlie Dan Ellie Fred George Harry Isla James Kim Lola Mike Nick Polly Rob
        Steve Tina Uma Vera Will Zack Ben Leo Mia Nora Ruby Ivy Clara June Sam Tom Pip Ada Theo
        Finn Hugo Otis Rosa Zoe Tilly Wren Omar Kofi Jonah Hana""",
    "person": """mother father grandmother grandfather sister brother aunt uncle teacher cousin mum
        mom dad grandma grandpa friend neighbour neighbor baker farmer doctor postman""",
    "child": "boy girl child baby prince princess king queen pirate witch wizard fairy knight",
    "animal": """cat dog puppy kitten rabbit mouse bear fox owl bird duck frog horse pony cow pig
        sheep goat hen chick goose squirrel hedgehog otter badger deer wolf lion tiger elephant
        monkey giraffe turtle snail bee butterfly spider ant ladybug fish whale dolphin shark crab
        penguin seal dragon dinosaur unicorn robot monster hamster parrot donkey lamb worm bat
        kangaroo crocodile swan crow""",
    "adjective": """little small big tall old young brave shy happy sad lonely funny clever kind
        curious hungry sleepy tired lazy silly quiet noisy grumpy gentle proud friendly tiny fluffy
        lost scared strong quick slow beautiful""",
    "colour": "red blue green yellow purple orange pink white black brown grey golden silver",
    "object": """ball kite book box key hat coat shoe boat train car bike bus drum bell doll teddy
        cup spoon lamp map stone shell flower leaf feather balloon umbrella basket blanket letter
        cake cookie apple egg seed tree bucket rope chair clock coin ring crown mirror bottle kettle
        ladder paint pencil picture puzzle sandwich scarf sock stick toy truck violin guitar
        whistle window pumpkin""",
    "place": """garden park forest wood beach farm market kitchen school house castle cave river
        lake pond hill mountain field village town city zoo library shop playground bedroom attic
        barn train station island sea street bridge meadow""",
    "food": """apples bread cake soup cookies pancakes honey cheese carrots berries bananas ice
        cream pizza rice noodles jam pie eggs milk chocolate""",
    "weather": "raining snowing sunny windy cold hot foggy dark cloudy stormy warm",
    "time": """morning afternoon evening night summer winter spring autumn Monday Tuesday Wednesday
        Thursday Friday Saturday Sunday weekend""",
    "doing": """playing running walking reading singing dancing baking cooking swimming sleeping
        drawing painting building digging fishing jumping climbing hiding cleaning working looking
        waiting eating laughing crying talking riding""",
    "do": """play run walk read sing dance bake cook swim sleep draw paint build dig jump climb hide
        eat laugh talk ride fly help explore""",
    "event": """it started to rain|the wind blew|the lights went out|the sun came out|a bird flew
        in|somebody knocked at the door|they heard a noise|the bus did not come|the snow fell|the
        phone rang|the dog barked|the cat ran away|a star fell from the sky|the boat began to
        move""",
    "stub": """The|A|My|I|We|He|She|They|It|There|One day|Once|Once upon a time|When|In the|On a|At
        the|Our|Every|Today|Yesterday|Last|After|Before|Because|If|Why|How|This|Some|Two|Three|Long
        ago|Far away|Mother|Father|Grandma|Grandpa|Mum|Dad|"Look|"I|"Where|"Can|"Please|"Do|Deep
        in|High up|Under the|Behind the|Near the|As|While|Nobody|Everybody|Someone|The little|The
        old|The big|My best|My little|{name}|{name}'s|{name} and|Little|Poor|Suddenly|Early|Late""",
}
TEMPLATES = """
    {name} and {name} were {doing} in the {place}
    {name} was {doing} in the {place} when {event}
    {name} and {name} went to the {place}
    {name} and {name}
    {name} was a {adjective} {animal}
    {name} had a {colour} {object}
    {name} had a {adjective} {animal}
    {name} wanted to {do}
    {name} wanted a {object}
    {name} liked to {do}
    {name} did not like {food}
    {name} lost the {object}
    {name} found a {object} in the {place}
    {name} looked at the {object}
    {name} saw a {adjective} {animal} in the {place}
    {name} asked the {animal}
    {name} loved {food}
    {name}, the {adjective} {animal},
    {name} and the {adjective} {animal}
    {name}'s {person} made {food}
    {name} said to the {animal},
    The {animal} and the {animal}
    The {adjective} {animal}
    The {adjective} {animal} wanted to {do}
    The {adjective} {child} lived in a {place}
    The {object} was {colour}
    The {child} and the {animal}
    The {person} was {doing}
    The children were {doing}
    The children wanted to {do}
    My {person} likes to {do}
    My {animal} is
    My {animal} likes {food}
    My {animal} and I
    My {person} and I went to the {place}
    My {person} gave me a {object}
    My favorite {object} is
    I have a {adjective} {animal}
    I was {doing} with my {person}
    I want to {do}
    I like {food}
    I went to the {place} and
    I saw a {colour} {animal}
    We were {doing} in the {place}
    We have a {animal} named {name}
    It was {weather}, so
    It was {weather} and {name} was
    It was a {weather} {time}
    It was {weather} outside, so {name}
    It was {name}'s birthday
    One day, a {adjective} {animal}
    One day, {name} and {name}
    One {time}, {event}
    One {time}, {name} was {doing}
    Once there was a {adjective} {animal}
    Once there was a {child} who
    Once upon a time, there was a {adjective} {animal} named {name}
    Once upon a time there was a {child}
    There was a {object} in the {place}
    There once was a {adjective} {child} who
    In the {place}, there lived a {adjective} {animal}
    In the {time}, {name} and {name}
    On {time}, we
    When {event}, {name}
    When {name} was {doing},
    When I was {adjective},
    Every {time}, the {animal}
    Every {time}, {name} goes to the {place}
    A {adjective} {animal} was {doing}
    A {adjective} {animal} and a {adjective} {animal}
    A {child} found a {colour} {object}
    Two {adjective} children were
    "Where is my {object}?" asked {name}.
    "I am {adjective}," said the {animal}.
    "Let us {do}," said {name}.
    "Look at the {animal}!" said {name}.
    Please tell me about the {adjective} {animal}
    After {doing}, {name}
    At the {place}, {name} saw
    This is {name}. {name} is
    Grandma and {name}
    Dad and I were {doing}
    Mom said that {name}
""".strip().split("\n    ")
ENDS = "aeiou", "bdfgjklmnprstvz"


def words(kind: str) -> list[str]:
    text = " ".join(WORDS[kind].split())
    return text.split("|" if "|" in text else " ")


CHOICES = {kind: words(kind) for kind in WORDS}


def made_up_name(rng: random.Random) -> str:
    """A name that is in no list, of one to three syllables."""
    vowels, consonants = ENDS
    syllables = [rng.choice(consonants) + rng.choice(vowels) for _ in range(rng.randint(1, 3))]
    return ("".join(syllables) + rng.choice(["", *"nlrsk"])).capitalize()


def _filled(template: str, rng: random.Random) -> str:
    def word(match: re.Match) -> str:
        if match[1] == "name" and rng.random() < 0.15:
            return made_up_name(rng)
        return rng.choice(CHOICES[match[1]])

    return re.sub(r"{(\w+)}", word, template)


def beginning(rng: random.Random) -> tuple[str, bool]:
    """A beginning, and whether it is a stub, to be gone on from freely. Some are empty."""
    kind = rng.random()
    if kind < 0.05:
        return "", True
    if kind < 0.40:
        return _filled(rng.choice(CHOICES["stub"]), rng), True
    text = _filled(rng.choice(TEMPLATES).strip(), rng)
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    if rng.random() < 0.2 and text[-1] not in '."?!,':
        text = text[:text.rindex(" ")] if " " in text else text
    return text, False
