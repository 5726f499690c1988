"""Beginnings of texts as people type them, drawn from templates and lists of words (words.py), and
what the teacher is asked to write with each.

In a template, {kind} is a word of that list, drawn afresh each time. People type what nobody
thought of here, so lists are wide, some names are made up, and many beginnings are a stub of a word
or two that the teacher goes on from more freely than usual.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from research.training.words import WORDS

ENDS = "aeiou", "bdfgjklmnprstvz"
EMPTY, MADE_UP, CUT, LOWER_CASE = 0.04, 0.12, 0.2, 0.04  # shares
STUB = 0.3  # of beginnings

STORYTELLER = "You are a good storyteller. You use simple words and short, clear sentences."
WRITER = "You are a good writer. You use simple words and short, clear sentences."
HELPER = "You explain things in simple words and short, clear sentences."


@dataclass
class Kind:
    """Beginnings of a kind: its share, what the teacher is told and asked, and templates."""

    name: str
    share: float
    system: str
    requests: list[str]
    templates: list[str]


def phrases(text: str) -> list[str]:
    return [" ".join(phrase.split()) for phrase in text.split("|")]


PLURALS = dict(
    pair.split()
    for pair in phrases("""
    goose geese| mouse mice| sheep sheep| fish fish| deer deer| calf calves| wolf wolves|
    knife knives| policeman policemen| policewoman policewomen| shelf shelves|
    fisherman fishermen| thief thieves
    """)
)
STUBS = phrases("""
    The| A| An| My| I| We| He| She| They| It| There| This| That| One day| Once| Once upon a time|
    When| In the| On a| At the| Our| Your| You| Every| Today| Yesterday| Tomorrow| Last| After|
    Before| Because| If| Why| How| What| Where| Who| Some| Two| Three| Four| Ten| Long ago|
    Many years ago| A long time ago| Far away| Mother| Father| Grandma| Grandpa| Mum| Dad| "Look|
    "I| "Where| "Can| "Please| "Do| "What| "Why| "You| "No| "Yes| "Come| "It is| "Oh|
    "Good morning| "Hello| Deep in| High up| Under the| Behind the| Near the| Inside the| Outside|
    Upstairs| Downstairs| As| While| Until| Since| Although| Nobody| Everybody| Everyone| Someone|
    Somebody| Something| Nothing| The little| The old| The big| The first| The last| The next|
    The new| The young| My best| My little| My old| My first| My new| {name}| {name}'s|
    {name} and| {name} {surname}| Mr. {surname}| Mrs. {surname}| Miss {surname}| Little| Poor|
    Suddenly| Early| Late| Finally| Maybe| Perhaps| Sometimes| Always| Never| Often| Usually|
    Here| Now| Then| Later| Soon| Again| In the middle of the night| In the morning|
    In the evening| At night| At home| At school| At work| At last| At first| On the way home|
    On the other side| In my| In our| In a| In {time}| On {time}| It was| It is| It was a|
    There was| There is| There are| There were| There was once| I am| I was| I have| I had|
    I like| I love| I think| I want| I wish| I remember| I saw| I met| I do not| I don't| I can|
    I will| I would| I used to| I never| We are| We were| We have| We went| He was| She was|
    They were| He had| She had| You are| You can| This is| That was| Let me| Let us| Please|
    Thank you| Dear| Hello| Hi| Good| No one| All| Most| Many| People| Children| Cats| Dogs|
    Birds| Life| Love| Time| Music| Summer| Winter| Nobody knew| Not far from| For| With| From|
    To| By| So| But| And| Or| Then one| One| One night| One morning| One evening| One winter|
    One summer| That night| That day| The day| The man| The woman| The boy| The girl|
    The {animal}| The {job}| The {object}| The {place}| The {nature}| The {human}| A {animal}|
    A {human}| A {object}| A {job}| My {person}| My {object}| Our {animal}| His| Her|
    His {object}| Her {object}| Their| Its| {Topic}| {Food}| {Time}
""")


STORY = Kind(
    "story",
    0.45,
    STORYTELLER,
    [
        "Write a very short story with a happy ending.",
        "Write a short story with a beginning, a middle and an end.",
        "Write a short story about friends who help each other.",
        "Write a short, funny story.",
        "Write a short adventure story about animals.",
        "Tell me a fairy tale in two short paragraphs.",
    ],
    phrases("""
    {name} and {name} were {doing} in the {place}| {name} was {doing} in the {place} when {event}|
    {name} and {name} went to the {place}| {name} and {name}| {name} was a {adjective} {animal}|
    {name} had a {colour} {object}| {name} had a {adjective} {animal}| {name} wanted to {do}|
    {name} wanted a {object}| {name} liked to {do}| {name} did not like {food}|
    {name} lost the {object}| {name} found a {object} in the {place}|
    {name} looked at the {object}| {name} saw a {adjective} {animal} in the {place}|
    {name} asked the {animal}| {name} loved {food}| {name}, the {adjective} {animal},|
    {name} and the {adjective} {animal}| {name}'s {person} made {food}|
    {name} said to the {animal},| {name} the {animal}| {name} was {feeling} because|
    The {animal} and the {animal}| The {adjective} {animal}|
    The {adjective} {animal} wanted to {do}| The {adjective} {child} lived in a {place}|
    The {animal} lived in the {place}| The {animal} was {feeling}| The {animal} could not {do}|
    The {animal} said to the {animal},| The {object} was {colour}| The {object} could talk|
    The {child} and the {animal}| The {person} was {doing}| The children were {doing}|
    The children wanted to {do}| The {quality} {object} in the {place}|
    The {nature} was {feeling}| My {animal} is| My {animal} likes {food}| My {animal} and I|
    We have a {animal} named {name}| It was {name}'s birthday| It was {weather} and {name} was|
    It was {weather} outside, so {name}| One day, a {adjective} {animal}|
    One day, {name} and {name}| One {time}, {event}| One day the {animal} {did} and|
    Once upon a time there was a {child}| Once upon a time, a {adjective} {animal}|
    Once upon a time, in a {place}| There was a {object} in the {place}|
    There once was a {adjective} {child} who| There was once a {job} who|
    In the {place}, there lived a {adjective} {animal}| In the middle of the {place}, there was|
    Far away, in a {place}| When {event}, {name}| When {name} was {doing},|
    Every {time}, the {animal}| A {adjective} {animal} was {doing}|
    A {adjective} {animal} and a {adjective} {animal}| A {child} found a {colour} {object}|
    A {animal} wanted to {do}| A {animal} who could {do}| Two {adjective} children were|
    Three {animal}s| "Where is my {object}?" asked {name}.| "I am {feeling}," said the {animal}.|
    "Let us {do}," said {name}.| "Look at the {animal}!" said {name}.|
    Please tell me about the {adjective} {animal}| A story about a {adjective} {animal}|
    This is {name}. {name} is| The {animal} with the {colour} {object}
    """),
)
TALE = Kind(
    "tale",
    0.2,
    WRITER,
    [
        "Write a short story about ordinary people.",
        "Write a short story about something that happened to someone.",
        "Write a short mystery with a good ending.",
        "Write a short story in two paragraphs. Make it exciting.",
        "Write a short, warm story about everyday life.",
        "Write a short adventure. Use simple words.",
    ],
    phrases("""
    The {job}| The {job} {did}| The {job} was {doing} when {event}| The {job} and the {job}|
    The {adjective} {job}| The {human} in the {place}| The {human} {did} and|
    The {human} with the {colour} {object}| The {object} in the {place}| The {quality} {object}|
    The {quality} {object} was| The {place} was empty.| The {place} was {quality} and|
    The {nature} was| The {nature} over the {place}| The last {object} in the {place}|
    The day {event},| The night before the {time},| The people of the {place}|
    The {person} of the {job}| The first time {name} saw the {place}| {name} {did}|
    {name} {did} and {did}| {name} {did} because| {name} had never been to the {place}|
    {name} worked in a {place}| {name} was a {job}|
    {name} was the {adjective} {job} in the {place}| {name} {surname} was a {job}|
    {name} {surname} lived| {name} walked into the {place} and| {name} did not know that|
    {name} could not sleep| {name} opened the {object} and| {name} was late for|
    {name} and the {job}| {name} lives in a {place} and| {name} wakes up and| {name} is a {job}|
    {name} is {doing} in the {place}| {name} has a {quality} {object}|
    {name} looked at {name} and| {name} stood in front of the {place}|
    {name}'s {person} was a {job}| {name}'s {person} {did}| {name}'s {object} was|
    Mr. {surname} {did}| Mr. {surname} and Mrs. {surname}| Mrs. {surname}, the {job},|
    Old Mr. {surname}| A {human} {did}| A {human} was {doing} in the {place}|
    A {job} and a {job} were| A {quality} {object} lay| A {quality} {object} in the {place}|
    A {adjective} {human}| It was a {weather} {time}| It was {weather}, so|
    It was the {time} that| It was the first day of {season}| It was late and|
    It was midnight and| It was a quiet {time} in the {place}| It all began when {event}|
    It started with a {object}| There was a {human} who| There was a {job} in our {place} who|
    There was no {food} in the house| There was a {quality} {object} under the|
    There were two {object}s on the| There is a {place} where| In the {place}, a {human}|
    In the {time}, {name} and {name}| In the {place} of {name} {surname}| In a {quality} {place}|
    In the middle of the night, {event}| In the middle of the {time},| In the year|
    On {time}, the {human}| On the way to the {place},| At the {place}, {name} saw|
    At the {place}, a {human}| At {time}, the {place}| Behind the {place}| Under the {object}|
    Near the {place}| After {doing}, {name}| After the {nature}| Before {doing}, the {job}|
    When {event},| When the {job} {did},| When the {human} came home| While {name} was {doing},|
    As soon as {event},| Suddenly {event}| Nobody in the {place}| Nobody knew why the {human}|
    Everyone in the {place}| No one had seen the {job}| Somebody {did}| Long ago, a {job}|
    Many years ago, in a {place}| Last {time}, a {human}| Late in the {time},|
    Early in the morning, the {job}| One {time} in the {place}| One night, {event} and|
    Two {job}s| Ten years later, {name}
    """),
)
FIRST = Kind(
    "first",
    0.15,
    WRITER,
    [
        "Tell me about your day in a few simple sentences.",
        "Write a few sentences of a diary. Use simple words.",
        "Tell me about something that happened to you, in a few sentences.",
        "Tell me about your family and your life in simple words.",
        "Tell me about yourself in a short, friendly text.",
    ],
    phrases("""
    My {person}| My {person} likes to {do}| My {person} is a {job}| My {person} was a {job} who|
    My {person} always| My {person} never| My {person} {did}| My {person} used to|
    My {person} and I went to the {place}| My {person} and I| My {person} gave me a {object}|
    My {person} told me| My {person} says that| My {person}'s {object}| My favorite {object} is|
    My favourite {food}| My favorite {time} is| My best friend| My name is {name} and|
    My first day at| My {object} is {quality}| My {animal} {did}| My {place} is|
    I have a {adjective} {animal}| I have a {quality} {object}| I have two {person}s|
    I was {doing} with my {person}| I was {doing} when {event}| I was {feeling} because|
    I was born in a| I am a {job}| I am {feeling} today| I am {doing} and|
    I am going to the {place}| I want to {do}| I would like to {do}| I like {food}|
    I like to {do}| I like {doing} because| I love my {person}| I love {food} and|
    I don't like {food}| I do not like {doing}| I went to the {place} and| I {did} and|
    I {did} this morning| I {did} last {time}| I {did} because| I never thought that|
    I saw a {colour} {animal}| I saw a {human} in the {place}| I met a {job} who|
    I work in a {place}| I live in a {place}| I remember the day when| I remember my {person}|
    I think that {topic}| I think my {person}| I wish I had a| I wish I could {do}|
    I always wanted to {do}| I used to {do}| I can't {do} because| I need a {object}|
    I got a {object} for| I found a {object}| I hear the {nature}| I woke up in a {place}|
    I opened my eyes and| If I had a {object}| If I were a {job}| If I could {do}| We {did} and|
    We were {doing} in the {place}| We live in a {place}| We went to the {place}|
    We went on holiday| We have a {quality} {object}| We had {food} for| We all| Our {person}|
    Our {place} is| Our {animal} {did}| Our neighbour| Our teacher| On {time}, we| On {time} I|
    Every {time} I| Every {time} we| Every {time}, {name} goes to the {place}| Last {time} we|
    Last {time} I {did}| Last night I| This morning {event}| This {time} I| Today I {did}|
    Today is {time} and| Today was a| Yesterday I {did}| Yesterday {event}| Yesterday my {person}|
    Tomorrow I| Tomorrow we will| When I was {adjective},| When I was a {child}|
    When I was young,| When I grow up| When I came home,| Dad and I were {doing}|
    Mom said that {name}| Grandma and {name}| Grandma always| Dad {did}| In the {time} I|
    In my {place}| At {time} we| At school we| At work I| After school I
    """),
)
FACTS = Kind(
    "facts",
    0.1,
    HELPER,
    [
        "Write a few interesting sentences about everyday life.",
        "Write a short newspaper column about everyday life.",
        "Write a page of a schoolbook. Use simple words.",
        "Write a few sentences about what people know and do.",
    ],
    phrases("""
    A {animal} is| A {job} is| A {object} is| A {place} is| A {animal} can| A good {job}|
    A good friend| The {animal} is| The {nature} is| The {place} is a place| {Topic}| {Topic} can|
    {Topic} and {topic}| {Food} with {food}| {Animal}s are| {Animal}s like| {Animal}s live|
    {Animal}s and {animal}s| {Job}s work| {Job}s are| People like {topic}| People who {do}|
    People in the {place}| Some people {do}| Many people think that| Most {animal}s|
    Some {animal}s| Children like to {do}| Children need| In {season}, people|
    In the {season}, the| In the {place}, you can| In the {time}, people| At the {place}, you|
    To {task}, you| To {task}, first| If you want to {task},| If you want to {do},|
    If you are {feeling},| If you see a {animal},| If you listen to the {nature},| When you {do},|
    When it is {weather},| When you are {feeling},| You can {do}| You need a {object} to|
    You should never| You should always| It is important to| It is good to {do}|
    It is not easy to {do}| There are many {animal}s| There are many ways to {task}|
    There are many kinds of| The best way to {task}| The best thing about {topic}|
    The best {food}| The most important thing| The difference between a {animal} and a {animal}|
    The meaning of {topic}| The world is| The future of {topic}| Every {job} needs|
    Every {animal} has| Before you {do},| Never {do}| Today, people| Long ago, people|
    How to {task}| The secret of {topic}| {Season} is
    """),
)
QUESTION = Kind(
    "question",
    0.04,
    HELPER,
    [
        "Write a short conversation between a child and a wise old woman.",
        "Write a page of a book in which a child asks and a teacher explains.",
    ],
    phrases("""
    Why is the {nature}| Why is the {object} {colour}?| Why are {animal}s| Why do {animal}s|
    Why do people {do}?| Why do we| Why can't {animal}s {do}?| Why does the {nature}|
    How do {animal}s| How do you {task}?| How can I {task}?| How does a {object}|
    How many {animal}s| How are you| What is a {object}| What is a {job}?| What is {topic}?|
    What do {animal}s eat?| What does a {job} do?| What did the {animal} say|
    What is the best {food}| What would you do if| What happens when {event}?| What makes {topic}|
    Where do {animal}s live?| Where is the {place}?| Where does the {nature}| Who is the {job}|
    Who lives in the {place}?| Who made the {object}| When does the {nature}| When is {time}|
    Can a {animal} {do}?| Can you {do}| Can you help me| Can I {do}| Do {animal}s|
    Do you like {food}?| Do you want to {do}?| Do you know| Did you ever| Is the {nature}|
    Is there a {object}| Are {animal}s| Have you ever been to the {place}?|
    Have you ever seen a {adjective} {animal}?| Would you like some {food}?| Should I {do}|
    Tell me about {topic}| Tell me about the {animal}
    """),
)
LETTER = Kind(
    "letter",
    0.03,
    WRITER,
    [
        "Write a short, friendly letter. Use simple words.",
        "Write a short letter to someone in the family.",
    ],
    phrases("""
    Dear {name},| Dear {person},| Dear {name}, thank you for the {object}| Dear {name}, I {did}|
    Dear {name}, how are you| Dear {name}, we {did} and| Dear Mr. {surname},|
    Dear Mrs. {surname}, my {person}| Dear {job},| Dear friend,| Dear diary, today|
    Dear Mother and Father,| Dear Santa,| Hello {name}, I am| Hi {name}, do you|
    Thank you for the {object}| Thank you for {doing}| I am writing to| I hope you are|
    We miss you| I am sorry that I| Happy birthday,| Good morning, {name}| Good night,
    """),
)
TALK = Kind(
    "talk",
    0.03,
    WRITER,
    [
        "Write a short conversation between two people, as in a book.",
        "Write a short scene with people who talk to each other.",
    ],
    phrases("""
    "Are you {feeling}?" asked {name}.| "Good morning," said the {job}.|
    "Good morning, Mrs. {surname},"| "Where are you going?" asked the {human}.|
    "Where is the {object}?" asked {name}| "Why are you {feeling}?" asked {name}|
    "I {did}," said {name}.| "I am {feeling}," said {name}| "I don't want to {do},"|
    "I want to {do}," said the {human}| "What is that {object}?" said| "What are you {doing}?"|
    "What is your name?"| "Who is there?"| "Who are you?" asked the {job}.|
    "Can I have some {food}?"| "Can you help me?" asked the {job}.| "Do you like {food}?" asked|
    "Did you hear that?"| "Come here," said the {job},| "Come with me to the {place},"|
    "Don't touch the {object}!"| "Look," said {name}, "the {nature}| "Look at the {nature}," said|
    "Please give me the {object},"| "Thank you for the {food},"|
    "You are {feeling}," said {name}.| "There is a {animal} in the {place}!"|
    "It is {weather} today," said| "Help!" cried the {human}.| "Stop!" shouted the {job}.|
    "No," said the {human}.| "Yes," said {name},| "My {object} is gone!"|
    "My {person} is a {job}," said| {name} said,| {name} asked, "Do you|
    {name} whispered to {name},| The {job} said,| The {job} asked the {human},|
    "Once upon a time," said the {job},| "Let's go to the {place},"| "Let's {do}!"|
    "How was the {place}?" asked| "Have you seen my {object}?"
    """),
)
KINDS = [STORY, TALE, FIRST, FACTS, QUESTION, LETTER, TALK]
FREE = [STORY, TALE, TALE, FIRST, FACTS]  # what a stub may become


def words(kind: str) -> list[str]:
    single, _, rest = WORDS[kind].partition("|")
    return single.split() + (phrases(rest) if rest else [])


CHOICES = {kind: words(kind) for kind in WORDS}


def made_up_name(rng: random.Random) -> str:
    """A name that is in no list, of one to three syllables."""
    vowels, consonants = ENDS
    syllables = [rng.choice(consonants) + rng.choice(vowels) for _ in range(rng.randint(1, 3))]
    return ("".join(syllables) + rng.choice(["", *"nlrsk"])).capitalize()


def plural(word: str) -> str:
    word = re.sub(r"(?<=[^aeiou])y$", "ie", re.sub(r"(s|x|ch|sh)$", r"\1e", word))
    return PLURALS.get(word, word + "s")


def _filled(template: str, rng: random.Random) -> str:
    def word(match: re.Match) -> str:
        if match[1] == "name" and rng.random() < MADE_UP:
            return made_up_name(rng)
        chosen = rng.choice(CHOICES[match[1].lower()])
        if match[2]:
            chosen = plural(chosen)
        return chosen if match[1].islower() else chosen[0].upper() + chosen[1:]

    text = re.sub(r"{(\w+)}(s\b)?", word, template)
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def beginning(rng: random.Random) -> tuple[str, Kind, bool]:
    """A beginning, its kind, and whether it is a stub, to be gone on from freely. Some are empty."""
    if rng.random() < EMPTY:
        return "", STORY, True
    is_stub = rng.random() < STUB
    if is_stub:
        kind = rng.choice(FREE)
        text = _filled(rng.choice(STUBS), rng)
    else:
        (kind,) = rng.choices(KINDS, [kind.share for kind in KINDS])
        text = _filled(rng.choice(kind.templates), rng)
        if rng.random() < CUT and text[-1] not in '."?!,' and " " in text:
            text = text[: text.rindex(" ")]
    if rng.random() < LOWER_CASE:
        text = text[0].lower() + text[1:]
    return text, kind, is_stub
