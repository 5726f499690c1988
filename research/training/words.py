"""The words that beginnings.py fills its templates with, a list for each kind of word: single
words, and after a bar phrases."""

WORDS = {
    "name": """Lily Max Anna Tim Sue Jack Emma Lucy Ella Noah Liam Olivia Sophie Grace Maya Ali Amir
        Fatima Yusuf Aisha Priya Arjun Ravi Mei Chen Kenji Yuki Sara Eva Paul Peter Mary John Kate
        Billy Molly Daisy Rose Alice Oscar Felix Hannah Lena Nina Carlos Maria Diego Luna Sofia
        Mateo Ana Pedro Ivan Olga Katya Freya Lars Emil Greta Hans Marie Pierre Chloe Luca Giulia
        Marco Zara Kwame Ama Abena Tariq Layla Nadia Hassan Samir David Ruth Adam Eve Daniel Sarah
        Josh Amy Beth Charlie Dan Ellie Fred George Harry Isla James Kim Lola Mike Nick Polly Rob
        Steve Tina Uma Vera Will Zack Ben Leo Mia Nora Ruby Ivy Clara June Sam Tom Pip Ada Theo
        Finn Hugo Otis Rosa Zoe Tilly Wren Omar Kofi Jonah Hana Robert Linda Susan Karen Michael
        Thomas Martin Laura Julia Simon Andrew Elena Victor Henry Arthur Edward Frank Walter Helen
        Margaret Barbara Nancy Betty Carol Joan Frances Agnes Edith Mabel Stella Jason Kevin Brian
        Eric Alex Chris Jordan Taylor Morgan Robin Jamie""",
    "surname": """Smith Brown Jones Miller Green Baker Taylor Wilson Clark Hill Young King Lee Wright
        Adams Carter Evans Murphy Cook Bell Ward Gray Stone Wood Fox Garcia Lopez Silva Rossi Weber
        Novak Khan Patel Singh Wang Kim Tanaka Okafor Mensah Hansen""",
    "person": """mother father grandmother grandfather sister brother aunt uncle teacher cousin mum
        mom dad grandma grandpa friend neighbour neighbor baker farmer doctor postman wife husband
        son daughter boss parents|children|family|twins|best friend|older brother|little sister""",
    "job": """teacher doctor nurse farmer baker cook waiter waitress driver pilot sailor captain
        soldier painter writer singer dancer musician actor artist gardener carpenter tailor
        shoemaker fisherman hunter miner builder plumber mechanic engineer scientist inventor
        astronaut detective policeman policewoman firefighter judge lawyer mayor president
        librarian postman shopkeeper hairdresser dentist vet clown magician thief beggar merchant
        blacksmith miller shepherd cowboy knight prince princess king queen pirate witch wizard
        giant fairy ghost monk traveller stranger student professor coach player runner swimmer
        cleaner secretary manager reporter photographer butcher nun guard prisoner spy hero""",
    "child": "boy girl child baby prince princess king queen pirate witch wizard fairy knight",
    "human": """man woman boy girl child baby couple family lady gentleman|old man|old woman|young
        man|young woman|little boy|little girl|teenager|group of friends|class of children""",
    "animal": """cat dog puppy kitten rabbit mouse bear fox owl bird duck frog horse pony cow pig
        sheep goat hen chick goose squirrel hedgehog otter badger deer wolf lion tiger elephant
        monkey giraffe turtle snail bee butterfly spider ant ladybug fish whale dolphin shark crab
        penguin seal dragon dinosaur unicorn robot monster hamster parrot donkey lamb worm bat
        kangaroo crocodile swan crow rat mole toad lizard snake eagle hawk sparrow robin pigeon
        seagull peacock turkey rooster camel zebra hippo rhino panda koala leopard cheetah gorilla
        octopus jellyfish starfish salmon beetle moth grasshopper cricket caterpillar dragonfly
        mosquito beaver raccoon skunk moose reindeer walrus buffalo bull calf foal""",
    "adjective": """little small big tall old young brave shy happy sad lonely funny clever kind
        curious hungry sleepy tired lazy silly quiet noisy grumpy gentle proud friendly tiny fluffy
        lost scared strong quick slow beautiful strange famous rich poor wise angry busy careful
        careless honest polite rude nervous calm cheerful excited surprised worried bored jealous
        greedy generous patient stubborn gloomy thin fat round pretty ugly wild tame new
        ordinary wonderful terrible secret magic forgotten broken invisible""",
    "quality": """old new big small heavy light broken empty full dirty clean warm cold wet dry soft
        hard beautiful strange special ordinary expensive cheap lost stolen magic secret tiny huge
        round square wooden golden silver rusty dusty shiny favourite favorite precious""",
    "feeling": """happy sad tired hungry thirsty angry afraid scared lonely bored excited proud
        nervous worried sick ill lost late ready sure sorry glad surprised confused ashamed jealous
        thankful hopeful homesick sleepy upset""",
    "colour": "red blue green yellow purple orange pink white black brown grey golden silver",
    "object": """ball kite book box key hat coat shoe boat train car bike bus drum bell doll teddy
        cup spoon lamp map stone shell flower leaf feather balloon umbrella basket blanket letter
        cake cookie apple egg seed tree bucket rope chair clock coin ring crown mirror bottle kettle
        ladder paint pencil picture puzzle sandwich scarf sock stick toy truck violin guitar
        whistle window pumpkin door table bed phone computer camera watch radio television piano
        pen notebook newspaper bag suitcase wallet purse ticket passport knife fork plate bowl pot
        pan oven fridge candle match fire pillow towel soap brush comb button needle thread dress
        shirt skirt jacket sweater boot glove glasses necklace hammer nail saw shovel rake broom
        wheel engine motorcycle truck plane rocket ship submarine helicopter tent backpack compass
        flashlight lantern treasure sword shield statue painting photograph diary package present
        gift machine wall roof fence gate bench sofa carpet curtain shelf drawer cupboard stove
        jar glass spoon bread loaf potato tomato onion orange banana lemon""",
    "nature": """sun moon star stars sky sea ocean river rain snow wind storm cloud clouds forest
        tree trees flower flowers mountain island desert lake waves ice fire night morning
        rainbow thunder lightning leaves grass sand rock world earth garden fog""",
    "place": """garden park forest wood beach farm market kitchen school house castle cave river
        lake pond hill mountain field village town city zoo library shop playground bedroom attic
        barn train|station|island|sea|street|bridge|meadow|office|hospital|museum|restaurant|
        cafe|bakery|church|theatre|cinema|airport|hotel|factory|harbour|port|bank|post office|
        supermarket|swimming pool|gym|classroom|living room|bathroom|basement|cellar|garage|
        backyard|balcony|roof|desert|jungle|valley|mountains|countryside|woods|harbor|palace|
        tower|tent|ship|boat|spaceship|moon|circus|fair|stadium|lighthouse|mill|windmill|
        cottage|cabin|hut|mansion|apartment|elevator|bus stop|train station|waiting room|
        doctor's office|bookshop|toy shop|corner shop|laundry|prison|court|university|
        laboratory|old house|big city|small town|little village|middle of nowhere""",
    "food": """apples bread cake soup cookies pancakes honey cheese carrots berries bananas
        pizza rice noodles jam pie eggs milk chocolate coffee tea fish chicken salad
        potatoes tomatoes beans corn butter sugar salt breakfast lunch dinner supper strawberries
        oranges grapes peaches pears cherries lemons onions meat sandwiches pasta porridge
        muffins popcorn candy sweets juice lemonade water|ice cream|hot soup|apple pie|fried eggs""",
    "weather": "raining snowing sunny windy cold hot foggy dark cloudy stormy warm",
    "time": """morning afternoon evening night summer winter spring autumn Monday Tuesday Wednesday
        Thursday Friday Saturday Sunday weekend day week year month holiday Christmas Easter
        January February March April May June July August September October November December""",
    "season": "spring summer autumn winter",
    "doing": """playing running walking reading singing dancing baking cooking swimming sleeping
        drawing painting building digging fishing jumping climbing hiding cleaning working looking
        waiting eating laughing crying talking riding driving flying sailing travelling shopping
        studying writing listening watching knitting sewing gardening camping hiking skating skiing
        sitting standing dreaming thinking learning teaching helping packing washing
        practising|watching television|washing the dishes|making breakfast|cooking dinner|going
        home|coming home|walking the dog|feeding the ducks|waiting for the bus|looking for the
        keys|doing homework|playing football|playing the piano|riding a bike|driving to work|
        telling jokes|planting flowers|picking apples|fixing the roof|moving to a new house""",
    "do": """play run walk read sing dance bake cook swim sleep draw paint build dig jump climb hide
        eat laugh talk ride fly help explore travel learn write sail drive fish garden work study
        leave stay win rest|go home|go to school|go to work|see the world|find a friend|make
        friends|learn to swim|learn to read|play the piano|play football|bake a cake|build a
        house|write a book|catch a fish|save money|buy a car|become a doctor|be a teacher|be
        famous|be alone|tell the truth|help people|go outside|stay in bed|clean the house|visit
        the city|see the sea|fly to the moon|travel by train|get married|have a dog""",
    "did": """|woke up early|woke up late|missed the bus|missed the train|lost a tooth|lost the
        keys|found a letter|found a wallet|opened the door|opened the box|closed the window|looked
        out of the window|went to bed|went to work|went to school|went for a walk|went shopping|
        went fishing|came home|came late|got lost|got a letter|got a new job|got a present|moved to
        the city|moved to a new house|made breakfast|made a cake|made a mistake|made a plan|made a
        new friend|broke the vase|broke a leg|bought a car|bought a house|bought a ticket|sold the
        farm|planted a tree|wrote a letter|wrote a song|read a book|heard a noise|heard a
        knock|saw something strange|saw a light|fell asleep|fell into the water|told a secret|told
        a joke|told a lie|won a prize|lost the game|took the train|took a picture|climbed the
        hill|climbed a tree|ran away|ran home|sat down|sat by the fire|stood at the window|waited
        for hours|said goodbye|said nothing|smiled|laughed|cried|started to sing|stopped the
        car|forgot the umbrella|remembered the song|cooked dinner|cleaned the house|fixed the
        bike|caught a cold|caught a fish|had a dream|had an idea|had a bad day|had a good
        day|learned to swim|met an old friend|met a stranger|called the doctor|went on holiday""",
    "event": """|it started to rain|the wind blew|the lights went out|the sun came out|a bird flew
        in|somebody knocked at the door|they heard a noise|the bus did not come|the snow fell|the
        phone rang|the dog barked|the cat ran away|a star fell from the sky|the boat began to
        move|the door opened|the door was locked|a letter came|the car stopped|the train was
        late|the music stopped|the clock struck twelve|the baby began to cry|everyone was
        asleep|nobody was there|the shop was closed|the teacher came in|the rain stopped|the ice
        broke|the fire went out|the moon was full|a stranger came to town|the power went out|the
        war was over|the school was closed|the alarm rang|something moved in the dark""",
    "topic": """|friendship|love|family|home|work|school|sleep|dreams|music|books|money|time|the
        weather|the sea|the moon|the sun|the stars|the rain|snow|winter|summer|spring|autumn|trees|
        flowers|birds|cats|dogs|horses|bees|fish|elephants|whales|ants|spiders|bread|cheese|tea|
        coffee|chocolate|cooking|gardening|reading|writing|drawing|singing|dancing|football|
        swimming|running|walking|travelling|trains|cars|bicycles|ships|planes|computers|robots|
        phones|clocks|letters|games|toys|birthdays|holidays|Christmas|the night|the morning|
        breakfast|dinner|health|courage|honesty|kindness|patience|happiness|growing up|growing
        old|being alone|being kind|saying sorry|telling the truth|making mistakes|learning|city
        life|country life|the forest|the mountains|the desert|rivers|clouds|thunder|colours|
        numbers|languages|school lunch|homework|neighbours|grandparents|babies|pets|farm animals""",
    "task": """|make tea|make soup|bake bread|bake a cake|boil an egg|plant a tree|grow tomatoes|wash
        your hands|brush your teeth|ride a bike|tie your shoes|build a snowman|fly a kite|make a
        friend|say sorry|write a letter|clean a room|feed a cat|train a dog|catch a fish|find your
        way home|fall asleep|learn to swim|save money|paint a wall|fix a bike|draw a face|tell a
        joke|cross the street|pack a suitcase|make a bed|wash a car|light a fire|read a map""",
}
