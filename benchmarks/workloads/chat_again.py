"""Conversations whose last turn asks for something said before in another form: shorter, without a part, as a table."""

from __future__ import annotations

from typing import NamedTuple


class Again(NamedTuple):
    """A talk of (question, reply) turns, what is asked for last, and the right answer to that."""

    name: str
    turns: tuple[tuple[str, str], ...]
    last: str
    answer: str


AGAIN = [
    Again(
        "list-without",
        (
            (
                "I'm giving a birthday party for eight children. What do I need to buy?",
                "For eight children you could buy:\n\n- 2 packets of paper plates\n- 10 paper cups\n- 1 bag of balloons\n"
                "- 3 litres of apple juice\n- 500 g of peanuts\n- 2 frozen pizzas\n- 1 chocolate cake\n- 8 candles",
            ),
        ),
        "One of them is allergic to nuts. Put the list together again with the peanuts left out, and popcorn added.",
        "For eight children you could buy:\n\n- 2 packets of paper plates\n- 10 paper cups\n- 1 bag of balloons\n"
        "- 3 litres of apple juice\n- 2 frozen pizzas\n- 1 chocolate cake\n- 8 candles\n- 2 bags of popcorn\n\n"
        "Check the label of the cake too: many chocolate cakes are made where nuts are used.",
    ),
    Again(
        "shorter",
        (
            (
                "Why does my sourdough starter smell of nail varnish?",
                "That sharp smell comes from a starter that is hungry. When the yeast and the bacteria have used up the "
                "flour, they begin to make other things, acetone among them, and that is what you smell. It is not "
                "spoiled. Throw away all but two spoonfuls, feed the rest with equal weights of flour and water twice a "
                "day, and keep it somewhere a little cooler. After two or three days it should smell of yoghurt again.",
            ),
        ),
        "Say that again in two sentences so that I can text it to my sister.",
        "Your starter is hungry, not spoiled. Keep two spoonfuls, feed them with equal weights of flour and water twice "
        "a day somewhere a little cooler, and in two or three days it should smell of yoghurt again.",
    ),
    Again(
        "table",
        (
            (
                "Which houseplants do well in a dark flat?",
                "Three that cope well: the snake plant, which wants water every three weeks and is poisonous to cats; the "
                "cast-iron plant, which wants water every two weeks and is safe for cats; and the ZZ plant, which wants "
                "water every three weeks and is poisonous to cats.",
            ),
            (
                "And one that hangs?",
                "The golden pothos hangs nicely. It wants water every week and is poisonous to cats.",
            ),
        ),
        "Can I have all four as a table?",
        "| Plant | Water | Cats |\n|---|---|---|\n| Snake plant | every three weeks | poisonous |\n"
        "| Cast-iron plant | every two weeks | safe |\n| ZZ plant | every three weeks | poisonous |\n"
        "| Golden pothos | every week | poisonous |",
    ),
    Again(
        "json",
        (
            (
                "Suggest three opening times for a small village library with two volunteers.",
                "Tuesday from 15:00 to 18:00 with Agnes, Thursday from 9:30 to 12:00 with Bertram, and Saturday from "
                "10:00 to 13:00 with both of them.",
            ),
        ),
        "Good. Now give me that as JSON, with the keys day, from, to and volunteers.",
        '[\n  {"day": "Tuesday", "from": "15:00", "to": "18:00", "volunteers": ["Agnes"]},\n'
        '  {"day": "Thursday", "from": "9:30", "to": "12:00", "volunteers": ["Bertram"]},\n'
        '  {"day": "Saturday", "from": "10:00", "to": "13:00", "volunteers": ["Agnes", "Bertram"]}\n]',
    ),
    Again(
        "what-did-you-say",
        (
            (
                "I've bought a second-hand guitar. What should I check?",
                "Look along the neck to see whether it is straight, press every string at every fret and listen for a "
                "buzz, and turn each tuning peg to feel whether it slips. New strings are worth it in any case: take "
                "light ones, 0.012 inches, since they are kinder to a beginner's fingers.",
            ),
            (
                "How often do I have to tune it?",
                "Every time you play. New strings stretch for about a week, so at first you will tune more than once in "
                "an hour.",
            ),
            (
                "Is a clip-on tuner good enough?",
                "Yes. It feels the vibration of the wood, so it works in a noisy room as well.",
            ),
        ),
        "I'm in the shop now. What did you say about which strings to get?",
        "I said to take light ones, 0.012 inches, since they are kinder to a beginner's fingers.",
    ),
    Again(
        "correct-mine",
        (
            (
                "I wrote this to my landlord: 'Dear Mr Okafor, the heating in our flat dont work since three days. We has "
                "called the number what you gave us but nobody is answering. Could you please send somebody until friday? "
                "Kind regards, Lena'. Is it polite enough?",
                "Yes, it is polite, and it says clearly what is wrong and what you want. There are a few mistakes in it, "
                "though. Shall I correct them?",
            ),
        ),
        "Yes please, just the text.",
        "Dear Mr Okafor, the heating in our flat hasn't worked for three days. We have called the number that you gave us "
        "but nobody is answering. Could you please send somebody by Friday? Kind regards, Lena",
    ),
    Again(
        "headings-in-german",
        (
            (
                "Make me a short checklist for closing the café in the evening.",
                "**Kitchen**\n- Turn off the ovens and the fryer\n- Wipe the worktops\n- Put the leftovers in the fridge\n\n"
                "**Counter**\n- Clean the coffee machine\n- Count the till\n\n"
                "**Doors**\n- Lock the back door\n- Switch on the alarm",
            ),
        ),
        "Translate the headings into German and leave everything else as it is.",
        "**Küche**\n- Turn off the ovens and the fryer\n- Wipe the worktops\n- Put the leftovers in the fridge\n\n"
        "**Theke**\n- Clean the coffee machine\n- Count the till\n\n"
        "**Türen**\n- Lock the back door\n- Switch on the alarm",
    ),
    Again(
        "steps-from-four",
        (
            (
                "How do I change a flat tyre? Give me all the steps.",
                "1. Park on firm, level ground and put on the handbrake.\n2. Loosen the wheel nuts half a turn.\n"
                "3. Raise the car with the jack until the tyre is off the ground.\n4. Take off the nuts and pull the wheel "
                "towards you.\n5. Push on the spare wheel and tighten the nuts by hand.\n6. Lower the car.\n7. Tighten the "
                "nuts crosswise with the wrench.",
            ),
            (
                "The car is up on the jack now, but it wobbles a little.",
                "Then don't go on yet. Lower it, put a flat board under the jack, and raise it again. It must stand still "
                "when you push it gently.",
            ),
        ),
        "Done, it stands still. Go on with the steps from 4, please.",
        "4. Take off the nuts and pull the wheel towards you.\n5. Push on the spare wheel and tighten the nuts by hand.\n"
        "6. Lower the car.\n7. Tighten the nuts crosswise with the wrench.",
    ),
    Again(
        "rename-in-code",
        (
            (
                "Write a Python function that gives the words of a text that occur more than once.",
                "```python\nfrom collections import Counter\n\n\ndef f(text):\n    words = text.lower().split()\n"
                "    counts = Counter(words)\n    return sorted(w for w, n in counts.items() if n > 1)\n```\n\n"
                "It ignores upper and lower case.",
            ),
            (
                "What does Counter do here?",
                "It is a dictionary that counts: for each word it holds how often the word occurs.",
            ),
        ),
        "Nice. Call the function repeated_words and let me choose how often a word must occur, twice by default.",
        "```python\nfrom collections import Counter\n\n\ndef repeated_words(text, least=2):\n"
        "    words = text.lower().split()\n    counts = Counter(words)\n"
        "    return sorted(w for w, n in counts.items() if n >= least)\n```",
    ),
    Again(
        "query-with-a-year",
        (
            (
                "I need an SQL query for the ten customers who spent the most. Tables: customers(id, name), "
                "orders(id, customer_id, total, placed_on).",
                "SELECT c.name, SUM(o.total) AS spent\nFROM customers c\nJOIN orders o ON o.customer_id = c.id\n"
                "GROUP BY c.id, c.name\nORDER BY spent DESC\nLIMIT 10;",
            ),
        ),
        "And only for orders placed in 2025?",
        "SELECT c.name, SUM(o.total) AS spent\nFROM customers c\nJOIN orders o ON o.customer_id = c.id\n"
        "WHERE o.placed_on >= '2025-01-01' AND o.placed_on < '2026-01-01'\n"
        "GROUP BY c.id, c.name\nORDER BY spent DESC\nLIMIT 10;",
    ),
    Again(
        "by-price",
        (
            (
                "What did the quotes for the bathroom say again? Keller 8,400 euros in six weeks, Brandt & Sons 7,150 "
                "euros in ten weeks, Nowak 9,200 euros in three weeks, Lindqvist 7,900 euros in five weeks.",
                "You have four quotes:\n- Keller: 8,400 euros, six weeks\n- Brandt & Sons: 7,150 euros, ten weeks\n"
                "- Nowak: 9,200 euros, three weeks\n- Lindqvist: 7,900 euros, five weeks",
            ),
        ),
        "Sort them from cheap to dear, and mark the fastest.",
        "- Brandt & Sons: 7,150 euros, ten weeks\n- Lindqvist: 7,900 euros, five weeks\n"
        "- Keller: 8,400 euros, six weeks\n- Nowak: 9,200 euros, three weeks (fastest)",
    ),
    Again(
        "letter-put-together",
        (
            (
                "Help me write a note for my neighbours: we're having our roof done from 12 May.",
                "Dear neighbours,\n\nFrom 12 May our roof will be renewed. The work will take about two weeks, and "
                "it will be loud between eight and four. We are sorry for the noise.\n\nYours,",
            ),
            (
                "It's three weeks, and we should say where the lorries will stand: in front of number 14.",
                "Then change the second sentence to 'The work will take about three weeks' and add: 'The lorries will "
                "stand in front of number 14.'",
            ),
        ),
        "Great, the whole note please. We are Ines and Paul.",
        "Dear neighbours,\n\nFrom 12 May our roof will be renewed. The work will take about three weeks, and it will be "
        "loud between eight and four. The lorries will stand in front of number 14. We are sorry for the noise.\n\n"
        "Yours,\nInes and Paul",
    ),
    Again(
        "three-times-as-much",
        (
            (
                "Pancakes for four?",
                "- 250 g of flour\n- 2 eggs\n- 400 ml of milk\n- 1 pinch of salt\n- 30 g of butter for the pan\n\nStir the "
                "flour and the milk, add the eggs and the salt, and let the batter rest for twenty minutes. Fry it in thin "
                "layers.",
            ),
        ),
        "We'll be twelve. Only the ingredients.",
        "- 750 g of flour\n- 6 eggs\n- 1.2 litres of milk\n- 3 pinches of salt\n- 90 g of butter for the pan",
    ),
    Again(
        "zu-fuss",
        (
            (
                "Wir sind einen Tag in Lübeck. Was sollen wir machen?",
                "Ein Vorschlag für den Tag: Um zehn Uhr beginnt ihr am Holstentor. Danach geht ihr durch die Altstadt zur "
                "Marienkirche. Mittags esst ihr an der Obertrave. Um zwei fahrt ihr mit dem Bus nach Travemünde und bleibt "
                "bis fünf am Strand. Abends gibt es Marzipantorte im Café am Rathaus.",
            ),
        ),
        "Ohne Travemünde, bitte, wir sind zu Fuß. Lieber noch ein Museum am Nachmittag.",
        "Ein Vorschlag für den Tag: Um zehn Uhr beginnt ihr am Holstentor. Danach geht ihr durch die Altstadt zur "
        "Marienkirche. Mittags esst ihr an der Obertrave. Um zwei besucht ihr das Hansemuseum und bleibt bis fünf. Abends "
        "gibt es Marzipantorte im Café am Rathaus.",
    ),
    Again(
        "nouvelle-date",
        (
            (
                "Corrige ce message : « Bonjour Madame, je vous écrit pour savoir si la salle et libre le 3 juin, nous "
                "somme vingt personne et nous aurons besoin d'un projecteur. »",
                "Bonjour Madame, je vous écris pour savoir si la salle est libre le 3 juin. Nous sommes vingt personnes et "
                "nous aurons besoin d'un projecteur.",
            ),
        ),
        "Merci ! Change la date : c'est le 10 juin, et nous serons trente.",
        "Bonjour Madame, je vous écris pour savoir si la salle est libre le 10 juin. Nous serons trente personnes et nous "
        "aurons besoin d'un projecteur.",
    ),
    Again(
        "commands-alone",
        (
            (
                "How do I put my local folder into a new git repository?",
                "Go to the folder and run `git init`. Then add all files with `git add .` and make the first commit with "
                '`git commit -m "First version"`. After that tell git where the repository is, with '
                "`git remote add origin git@git.example.org:me/notes.git`, and send it there with "
                "`git push -u origin main`.",
            ),
            (
                "It says the branch main does not exist.",
                "Your git still calls the first branch master. Run `git branch -M main` before you push.",
            ),
        ),
        "Can you give me all the commands in the right order, without the explanations?",
        '```sh\ngit init\ngit add .\ngit commit -m "First version"\ngit branch -M main\n'
        "git remote add origin git@git.example.org:me/notes.git\ngit push -u origin main\n```",
    ),
    Again(
        "how-long-in-all",
        (
            (
                "How do I dye a cotton shirt?",
                "Soak it in warm water for 15 minutes. Dissolve the dye with salt, put the shirt in, and keep it moving for "
                "45 minutes. Rinse it for 10 minutes until the water is clear, and hang it in the shade.",
            ),
        ),
        "How long is that in all, without the drying?",
        "About 70 minutes: 15 for soaking, 45 in the dye and 10 for rinsing. Add a little for dissolving the dye.",
    ),
    Again(
        "days-swapped",
        (
            (
                "Plan my training for a 10 km run, four days a week.",
                "Monday: 5 km, easy\nWednesday: 6 times 400 m fast, 200 m walking between them\nFriday: 4 km, easy, then "
                "stretching\nSunday: 8 km, slow",
            ),
            (
                "What if my knee hurts?",
                "Then leave out the fast 400 m and cycle for half an hour instead.",
            ),
        ),
        "I can't do Wednesdays, but Thursdays are fine. And I did hurt my knee. What is my plan now?",
        "Monday: 5 km, easy\nThursday: cycling for half an hour, in place of the fast 400 m\nFriday: 4 km, easy, then "
        "stretching\nSunday: 8 km, slow\n\nIf the knee still hurts on Friday, rest that day.",
    ),
]
