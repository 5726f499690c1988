"""The grammar of the stories, as data: RULES say how a story may go on, TABLES say who and what it
may be about, UNLIKE which of these do not go together. stories.py writes and reads by it.

In a template, <rule> is any alternative of that rule, chosen afresh each time. {slot} and
{slot.field} come from a row of the slot's table, chosen at the slot's first mention and kept for
the rest of the story; {slot} alone is the field "name". {he}, {him} and {his} are the hero's, and
a field with a capital, as in {He}, is written with one.
"""

import itertools

# ---- Tables: slot -> rows -----------------------------------------------------------------------

SHE = "Mia Nora Ruby Ivy Clara June Hana Rosa Zoe Tilly Ada Wren".split()
HE = "Ben Leo Omar Finn Theo Hugo Kofi Sam Jonah Otis Pip Max".split()
ANIMALS = "fox rabbit mouse bear hedgehog squirrel otter badger".split()
COLOURS = "red blue green yellow purple orange silver white pink".split()


def people():
    """Rows of everyone a story can be about. Children come up three times as often as each
    animal."""
    genders = [(SHE, "girl", ("she", "her", "her")), (HE, "boy", ("he", "him", "his"))]
    return [
        dict(name=name, kind=kind, he=he, him=him, his=his)
        for names, child, (he, him, his) in genders
        for name in names
        for kind in [child] * 3 + ANIMALS
    ]


def coloured(rows):
    """Each row in each colour, with the fields `colour` and `a` ("a red", "an orange")."""
    return [
        dict(row, colour=colour, a=("an " if colour[0] in "aeiou" else "a ") + colour)
        for row in rows
        for colour in COLOURS
    ]


def spotted(rows):
    """Each row with every choice of three of its four spots, as `one`, `two` and `three`."""
    return [
        dict(row, one=one, two=two, three=three)
        for row in rows
        for one, two, three in itertools.permutations(row["spots"], 3)
    ]


def rows(fields, *lines):
    """Rows from lines whose cells, separated by " | ", are named by `fields`."""
    names, cells = fields.split(), [line.split(" | ") for line in lines]
    assert all(len(row) == len(names) for row in cells)
    return [dict(zip(names, row)) for row in cells]


TABLES = {
    "hero": people(),
    "friend": people(),
    "elder": rows("name", "mother", "father", "grandmother", "grandfather", "aunt", "uncle"),
    "home": rows(
        "name",
        "in a small house by the sea",
        "in a cosy cottage at the edge of the wood",
        "in a tall house on a hill",
        "beside an old mill",
        "on the bank of a quiet river",
        "in a village between two mountains",
        "at the end of a long green lane",
    ),
    "thing": coloured(
        rows(
            "name use lost",
            "kite | flew it high above the path | flew out of {his} hands",
            "ball | bounced it along the path | rolled away",
            "hat | waved it at the birds | blew away",
            "scarf | wrapped it twice around {his} neck | slipped from {his} neck",
            "bell | rang it at every gate | dropped out of {his} pocket",
            "whistle | blew it to greet the birds | dropped out of {his} pocket",
            "drum | beat it as {he} marched along | rolled away",
            "toy boat | pulled it along on a string | slipped off its string",
            "umbrella | twirled it over {his} shoulder | blew away",
            "ribbon | waved it in the air like a flag | flew out of {his} hands",
        )
    ),
    "other": rows("name", *COLOURS),
    "place": spotted(
        [
            dict(
                name="the park",
                at="in the park",
                spots=[
                    "under the wooden bench",
                    "behind the slide",
                    "beside the duck pond",
                    "in the long grass",
                ],
            ),
            dict(
                name="the beach",
                at="on the beach",
                spots=[
                    "behind the big rocks",
                    "under the fishing boat",
                    "among the shells",
                    "beside the wooden steps",
                ],
            ),
            dict(
                name="the market",
                at="at the market",
                spots=[
                    "under the apple cart",
                    "behind the flower stall",
                    "beside the fountain",
                    "between two baskets of bread",
                ],
            ),
            dict(
                name="the forest",
                at="in the forest",
                spots=[
                    "under the tall oak",
                    "behind a mossy log",
                    "beside the stream",
                    "among the ferns",
                ],
            ),
            dict(
                name="the farm",
                at="on the farm",
                spots=[
                    "behind the barn",
                    "under the hay wagon",
                    "beside the chicken house",
                    "among the pumpkins",
                ],
            ),
            dict(
                name="the garden",
                at="in the garden",
                spots=[
                    "under the apple tree",
                    "behind the shed",
                    "beside the rose bush",
                    "among the cabbages",
                ],
            ),
            dict(
                name="the meadow",
                at="in the meadow",
                spots=[
                    "under the willow tree",
                    "behind the stone wall",
                    "beside the gate",
                    "among the daisies",
                ],
            ),
        ]
    ),
    "stranger": rows(
        "name the",
        "an old goose | the goose",
        "a busy baker | the baker",
        "a tall heron | the heron",
        "a sleepy cat | the cat",
        "a friendly farmer | the farmer",
    ),
    "witness": rows(
        "name the",
        "a wise toad | the toad",
        "a grey pony | the pony",
        "a jolly postman | the postman",
        "a little robin | the robin",
    ),
    "work": coloured(
        rows(
            "name part loan how result",
            "boat | sail | scarf | tied the {work.colour} scarf to the mast"
            " | It sailed across the pond like a swan",
            "kite | tail | ribbon | tied the {work.colour} ribbon to the end of the kite"
            " | It climbed higher than the trees",
            "snowman | hat | cap | put the {work.colour} cap on the snowman's round head"
            " | It looked as proud as a king",
            "scarecrow | coat | jacket | buttoned the {work.colour} jacket around the scarecrow"
            " | It looked as proud as a king",
            "tent | roof | blanket | spread the {work.colour} blanket over the top of the tent"
            " | It was warm and dry inside",
            "swing | seat | cushion | tied the {work.colour} cushion between the ropes"
            " | It swung as high as the branches",
            "puppet | nose | button | sewed the {work.colour} button in the middle of its face"
            " | It seemed to smile at them both",
            "sand castle | flag | handkerchief"
            " | put the {work.colour} handkerchief on top of the tallest tower"
            " | It looked grand enough for a king",
        )
    ),
    "tool": coloured(
        rows(
            "name trouble help",
            "rope | had fallen into a deep hole"
            " | {He} let down the rope, and {friend} climbed up it and out of the hole",
            "umbrella | was sitting in the rain, wet from head to toe"
            " | {He} opened the umbrella, and there was just enough room under it for two",
            "lantern | had lost the way in a thick fog"
            " | {He} held up the lantern, and its light showed them where the path was",
            "blanket | was shivering in the cold wind"
            " | {He} wrapped the blanket around {friend}, who soon felt warm again",
            "net | had dropped a shoe into the river"
            " | {He} reached out with the net and lifted the shoe out of the water",
            "basket | had more apples than anyone could carry"
            " | {He} held out the basket, and all the apples fitted inside",
            "spade | was stuck in deep snow"
            " | {He} dug with the spade until {friend} could step out of the snow",
            "bottle | was hot and thirsty after a long walk"
            " | {He} poured some cool water from the bottle, and {friend} drank it all",
        )
    ),
    "errand": rows(
        "name",
        "buy some honey",
        "post a letter",
        "fetch some bread",
        "visit an old neighbour",
        "borrow a book",
    ),
    "sound": rows(
        "name cause",
        "Tap, tap, tap | a loose board knocking in the wind",
        "Hoo, hoo, hoo | a baby owl calling for its mother",
        "Drip, drip, drip | rain dripping into an old bucket",
        "Creak, creak, creak | a rusty wheel turning in the wind",
        "Rustle, rustle, rustle | a kitten playing with the dry leaves",
        "Croak, croak, croak | a fat frog singing to the moon",
    ),
    "light": coloured(rows("name", "lantern", "lamp", "candle")),
    "yard": spotted(
        [
            dict(
                spots=[
                    "behind the woodpile",
                    "under the stairs",
                    "beside the well",
                    "near the garden gate",
                ]
            )
        ]
    ),
}

# A slot whose row must differ from another slot's in one field. Hero and friend never share a
# pronoun, so "he" and "she" always say who is meant.
UNLIKE = {
    "friend": lambda row, cast: row["he"] != cast["hero"]["he"],
    "other": lambda row, cast: row["name"] != cast["thing"]["colour"],
}

# ---- Rules: name -> alternative templates -------------------------------------------------------

RULES = {
    "story": ["<lost>", "<found>", "<made>", "<helped>", "<night>"],
    # Shared by several plots.
    "mood": ["kind", "cheerful", "curious", "gentle", "clever", "shy", "lively", "thoughtful"],
    "small": ["little", "small", "young"],
    "day": ["<date>", "<date>", "One sunny morning,", "One bright afternoon,", "One fine day,"],
    "date": ["One day,", "One quiet Sunday,", "Early one morning,"],
    "meet": ["<who>", "<who> <habit>", "<who> <habit>"],
    "who": [
        "Once upon a time, there was a <small> {hero.kind} named {hero}. {He} lived {home} with"
        " {his} {elder}.",
        "Once upon a time, a <mood> {hero.kind} named {hero} lived {home} with {his} {elder}.",
        "Once upon a time, {home}, there lived a <mood> {hero.kind} named {hero} and {his}"
        " {elder}.",
        "There was once a <mood> little {hero.kind} named {hero}. {He} lived with {his} {elder}"
        " {home}.",
        "Long ago, a <small> {hero.kind} named {hero} lived {home} with {his} {elder}.",
        "{hero} was a <mood> {hero.kind} who lived {home} with {his} {elder}.",
        "{home.Name}, a <mood> little {hero.kind} named {hero} lived with {his} {elder}.",
        "This is the story of a <small> {hero.kind} named {hero}, who lived {home} with {his}"
        " {elder}.",
    ],
    "habit": [
        "{His} {elder} told good stories by the fire.",
        "{His} {elder} grew roses by the door.",
        "{His} {elder} baked warm bread every morning.",
        "{His} {elder} knew the name of every bird.",
    ],
    "comes": [
        "Just then, a <mood> {friend.kind} named {friend} came by.",
        "Along came a <mood> little {friend.kind} named {friend}.",
        "Before long, a <mood> {friend.kind} named {friend} came past.",
    ],
    "thanks": [
        '"Thank you, {friend}," said {hero}. "You are a good friend."',
        '{hero} gave {friend} a big hug. "I could not have done it without you," {he} said.',
        '"Hooray!" cried {hero}, and {he} danced around {friend} three times.',
        "{hero} was so happy that {he} laughed out loud, and {friend} laughed too.",
    ],
    "bond": [
        "From that day on, {hero} and {friend} were the best of friends.",
        "After that, {hero} and {friend} met every day.",
        "And so {hero} and {friend} became good friends.",
        "{hero} was glad, for now {he} had a new friend named {friend}.",
    ],
    # A treasure is lost and found again.
    "lost": [
        "<lost.opening> <lost.mishap>\n\n<comes> <lost.talk>\n\n<lost.search>\n\n<lost.ending>"
    ],
    "lost.opening": [
        "<meet> <lost.treasure>\n\n<day> {hero} took {his} {thing.colour} {thing} to {place}."
        " <lost.play>",
        "<day> a <mood> {hero.kind} named {hero} took {his} {thing.colour} {thing} to {place}. It"
        " was a present from {his} {elder}, and {he} loved it very much. <lost.play>",
    ],
    "lost.treasure": [
        "{hero} had {thing.a} {thing} that {he} loved more than anything.",
        "For {his} birthday, {he} was given {thing.a} {thing}.",
        "The best thing {he} had was {thing.a} {thing}.",
    ],
    "lost.play": [
        "{He} {thing.use} and sang a little song.",
        "All the way there, {he} {thing.use}.",
        "{He} felt so happy that {he} {thing.use}.",
    ],
    "lost.mishap": [
        "{place.At}, {he} stopped to <lost.sight>, and {he} did not notice when the {thing}"
        " {thing.lost}. <lost.gone>",
        "Then {he} stopped to <lost.sight>. While {he} was not looking, the {thing} {thing.lost}."
        " <lost.gone>",
    ],
    "lost.sight": [
        "watch a line of ants",
        "listen to a blackbird",
        "look at a striped snail",
        "watch a butterfly",
        "look at the clouds",
    ],
    "lost.gone": [
        "When {he} turned around, it was gone. {hero} sat down and began to cry.",
        "When {he} noticed, it was too late. A big tear ran down {his} nose.",
        "Soon {he} saw that it was gone, and {he} felt very sad.",
    ],
    "lost.talk": ["<lost.ask> <lost.answer> <lost.offer>"],
    "lost.ask": [
        '"What is the matter?" asked {friend}.',
        '"Why do you look so sad?" {friend.he} asked.',
        '"Oh dear, what has happened?" asked {friend}.',
    ],
    "lost.answer": [
        '"I have lost my {thing.colour} {thing}," said {hero}.',
        '"My {thing.colour} {thing} is gone," said {hero}. "I cannot see it anywhere."',
    ],
    "lost.offer": [
        '"Then let us look for it together," said {friend}.',
        '"Do not worry," said {friend}. "I will help you look for it."',
        '"We will find it," said {friend}. "Four eyes see more than two."',
    ],
    "lost.search": ["<lost.first> <lost.second> <lost.found>"],
    "lost.first": [
        "First they looked {place.one}, but they found only an old boot.",
        "First they looked {place.one}, but they saw nothing but a sleepy beetle.",
        "They began to look {place.one}, but there was nothing there except a feather.",
    ],
    "lost.second": [
        "Next they looked {place.two}, but it was not there either.",
        "Then they looked {place.two}, but all they found was a walnut.",
        "They looked {place.two} too, but they had no luck.",
    ],
    "lost.found": [
        'At last {friend} looked {place.three}. "Come quickly!" {friend.he} called. There lay the'
        " {thing.colour} {thing}!",
        "At last {hero} saw something {thing.colour} {place.three}. It was {his} {thing}!",
        '"Wait," said {friend}. "What is that {place.three}?" It was the {thing.colour} {thing}!',
    ],
    "lost.ending": [
        "<thanks> <lost.home> <bond>",
        "<thanks> <lost.home> And {hero} never lost the {thing.colour} {thing} again.",
    ],
    "lost.home": [
        "{He} held the {thing.colour} {thing} tight all the way home.",
        "That evening, {he} told {his} family how {friend} had helped {him} to find the {thing}.",
        "That night, the {thing.colour} {thing} lay safe beside {his} bed.",
    ],
    # Somebody else's treasure is found and given back.
    "found": [
        "<found.opening> <found.find>\n\n<found.first> <found.second>\n\n"
        "<found.owner>\n\n<found.ending>"
    ],
    "found.opening": [
        "<meet> <found.habit>\n\n<day> {he} went for a walk {place.at}.",
        "<day> a <mood> {hero.kind} named {hero} was walking {place.at}. {His} {elder} had sent"
        " {him} out to play.",
    ],
    "found.habit": [
        "{hero} liked long walks, and {he} always kept {his} eyes open.",
        "Every day {hero} went out to see what {he} could find.",
    ],
    "found.find": [
        'There, {place.three}, {he} found {thing.a} {thing}. "Somebody must have lost this," said'
        " {hero}.",
        'Suddenly {he} saw something {thing.colour} {place.three}. It was {thing.a} {thing}! "Whose'
        ' can it be?" said {hero}.',
    ],
    "found.first": [
        'First {he} met {stranger}. "Is this your {thing}?" asked {hero}. "No," said'
        ' {stranger.the}. "My {thing} is {other}, not {thing.colour}."',
        '{He} asked {stranger} about the {thing}. "It is not mine," said'
        ' {stranger.the}. "Mine is {other}."',
    ],
    "found.second": [
        'Then {he} met {witness}. "I saw somebody looking for it {place.one}," said {witness.the}.',
        'Next {he} asked {witness}. "Go and look {place.one}," said {witness.the}.'
        ' "Somebody there is very sad."',
    ],
    "found.owner": [
        "{hero} ran as fast as {he} could. There, {place.one}, sat a <mood> {friend.kind} named"
        " {friend}. <found.give>",
        "So {hero} went to look, and {place.one} {he} found a <mood> {friend.kind} named {friend}."
        " <found.give>",
    ],
    "found.give": [
        '"I have lost my {thing.colour} {thing}," said {friend}. "Is this it?" asked {hero}.'
        " <found.joy>",
        '"Why are you so sad?" asked {hero}. "My {thing} is gone," said {friend}. "It was'
        ' {thing.colour}, and I loved it." {hero} held out the {thing.colour} {thing}. <found.joy>',
    ],
    "found.joy": [
        '"Yes, that is my {thing}!" cried {friend}, and {friend.he} jumped for joy.',
        '{friend} clapped. "You have found it!" {friend.he} cried.',
    ],
    "found.ending": [
        '"Thank you, {hero}," said {friend}. <found.play> <found.proud> <bond>',
        '"How kind you are," {friend.he} said. <found.play> <found.proud> <bond>',
    ],
    "found.play": [
        "They played together until the sun went down.",
        "Then {friend} shared a sweet pear with {hero}.",
        "All afternoon they played with the {thing.colour} {thing}.",
    ],
    "found.proud": [
        "{His} family was very proud of {him}.",
        "That evening, {hero} told {his} family about the {thing.colour} {thing}.",
    ],
    # A work lacks one part, and a friend has it.
    "made": ["<made.opening> <made.lack>\n\n<comes> <made.talk>\n\n<made.join>\n\n<made.ending>"],
    "made.opening": [
        "<meet> <made.skill>\n\n<day> {he} began to make a {work} for {his} family.",
        "<day> a <mood> {hero.kind} named {hero} wanted to make a {work} for {his} family.",
    ],
    "made.skill": [
        "{hero} loved to make things.",
        "{hero} was good with {his} hands.",
        "{hero} was always busy making something new.",
    ],
    "made.lack": [
        "{He} worked hard all morning, but something was missing. The {work} had no {work.part}!"
        " <made.try>",
        "{He} hummed as {he} worked, and soon it was nearly ready. But where was the {work.part}?"
        " <made.try>",
    ],
    "made.try": [
        "{He} tried to use a big leaf, but it fell off.",
        "{He} tried to use some old paper, but the wind blew it away.",
        "{He} tried to use a bundle of straw, but it fell apart.",
    ],
    "made.talk": ["<made.ask> <made.answer> <made.lend>"],
    "made.ask": ['"What are you making?" asked {friend}.', '"What is that?" asked {friend}.'],
    "made.answer": [
        '"It is a {work}," said {hero}, "but it has no {work.part}."',
        '"I am making a {work}," said {hero}. "All it needs is a {work.part}."',
    ],
    "made.lend": [
        '{friend} thought for a moment. "You can have my {work.colour} {work.loan}," {friend.he}'
        " said.",
        '"I have {work.a} {work.loan}," said {friend}. "It will make a good {work.part}."',
        '"Take this {work.colour} {work.loan}," said {friend}. "I am happy to share it."',
    ],
    "made.join": [
        "Together they {work.how}. {work.result}.",
        "{hero} and {friend} {work.how}. At last the {work} was ready. {work.result}.",
    ],
    "made.ending": ["<thanks> <made.show> <bond>"],
    "made.show": [
        'When {his} family came to look, {hero} said, "{friend} gave me the {work.loan}."',
        '"What a fine {work}!" said {his} family. "And what a fine {work.colour} {work.loan}!"',
        "Everybody liked the {work.part} best.",
    ],
    # A thing carried along turns out to be just what somebody needs.
    "helped": [
        "<helped.opening>\n\n<helped.call> <helped.plea>\n\n<helped.idea>\n\n<helped.ending>"
    ],
    "helped.opening": [
        "<meet> <date> {he} set out to {errand}. <helped.take>",
        "<date> a <mood> {hero.kind} named {hero} set out to {errand}. <helped.take>",
    ],
    "helped.take": [
        '"Take this {tool.colour} {tool} with you," somebody called. "You may need it." {hero}'
        " laughed, but {he} took it.",
        'At the door, {he} was given {tool.a} {tool}. "What is this for?" asked {hero}.'
        ' "You will see," was the answer.',
        '"Do not forget the {tool.colour} {tool}," somebody called. {hero} did not know why, but'
        " {he} took it along.",
    ],
    "helped.call": [
        "After a while, {he} heard somebody call. It was a <mood> {friend.kind} named {friend}, who"
        " {tool.trouble}.",
        "The path went over a hill. On the other side, {he} met a <mood> {friend.kind} named"
        " {friend}, who {tool.trouble}.",
        "{He} had not gone far when {he} met a <small> {friend.kind} named {friend}, who"
        " {tool.trouble}.",
    ],
    "helped.plea": [
        '"Can you help me?" asked {friend}.',
        '"Please help me," said {friend}.',
        '"Oh, what shall I do?" cried {friend}.',
    ],
    "helped.idea": ["<helped.think> {tool.help}. <helped.relief>"],
    "helped.think": [
        "{hero} thought hard. Then {he} remembered the {tool.colour} {tool}.",
        '"I know!" said {hero}. "My {tool.colour} {tool} is just what we need."',
        '"Do not be afraid," said {hero}. "I have {tool.a} {tool}."',
    ],
    "helped.relief": [
        '"Thank you, {hero}," said {friend}. "How clever you are!"',
        '{friend} smiled. "You came just in time," {friend.he} said.',
    ],
    "helped.ending": [
        "Then {hero} and {friend} went on to {errand} together. <helped.home> <bond>",
        '"I am on my way to {errand}," said {hero}. "Come with me!" So off they went together.'
        " <helped.home> <bond>",
    ],
    "helped.home": [
        '"You were right," {hero} told {his} family that evening. "I did need the'
        ' {tool.colour} {tool}."',
        "At home, {he} told {his} family what the {tool.colour} {tool} had been good for.",
        '"So you used the {tool.colour} {tool} after all," said {his} family that evening.',
    ],
    # A frightening sound in the night has a small cause.
    "night": ["<night.opening> <night.heard>\n\n<night.out>\n\n<night.search>\n\n<night.ending>"],
    "night.opening": [
        "<meet> {hero} was not afraid of much, but {he} did not like the dark.\n\nOne night, {he}"
        " woke up and heard something strange.",
        "One night, a <mood> {hero.kind} named {hero} woke up and heard something strange. {His}"
        " {elder} was fast asleep.",
    ],
    "night.heard": [
        '"{sound}," it went. "Who is there?" asked {hero}, but nobody answered.',
        '"{sound}," came the sound. {hero} hid under the covers, but it did not stop.',
        '"{sound}," it went, and then again, "{sound}."',
    ],
    "night.out": [
        "{He} took {light.a} {light} and went outside. There {he} met a <mood> {friend.kind} named"
        " {friend}. <night.talk>",
        "So {he} lit {light.a} {light} and opened the door. Outside stood a <mood> {friend.kind}"
        " named {friend}. <night.talk>",
    ],
    "night.talk": [
        '"Did you hear it too?" asked {friend}. "Yes," said {hero}. "Let us find out what it is."',
        '"Is it a monster?" asked {friend}. "I do not know," said {hero}. "Come with me, and we'
        ' will see."',
        '"I cannot sleep," said {friend}. "Nor can I," said {hero}. "Let us look together."',
    ],
    "night.search": ["<night.first> <night.second> <night.cause>"],
    "night.first": [
        "First they looked {yard.one}, but nobody was there.",
        "Side by side, they looked {yard.one}, but they saw only shadows.",
    ],
    "night.second": [
        "Then they looked {yard.two}, but they found nothing.",
        "They looked {yard.two} too, but all was still.",
    ],
    "night.cause": [
        'Then {hero} held up the {light.colour} {light} and looked {yard.three}. "{sound}!" It was'
        " only {sound.cause}.",
        '"{sound}!" The sound was close now. {friend} looked {yard.three}, and there it was. It was'
        " only {sound.cause}!",
    ],
    "night.ending": ["<night.laugh> <night.bed> <bond>"],
    "night.laugh": [
        '"How silly we were!" said {friend}, and they both laughed.',
        '{hero} began to laugh. "We were brave together," {he} told {friend}.',
        '"So that was our monster!" said {hero}, and {friend} laughed until {friend.he} cried.',
    ],
    "night.bed": [
        'Back in bed, {hero} heard it again. "{sound}," it went, but now {he} only smiled.',
        "Then {hero} put out the {light.colour} {light} and slept until morning.",
        "In the morning, {hero} told {his} family about it, and they laughed together.",
    ],
}
