"""Beginnings of texts of many kinds, which a model goes on with for its own calibration."""

from __future__ import annotations

BEGINNINGS = (
    # Code and data.
    '''import csv
import os


def read_prices(path, currency="EUR"):
    """Returns a dictionary from names to prices, without those of other currencies."""
    prices = {}
    with open(path, encoding="utf-8") as file:
        for row in csv.DictReader(file):
''',
    """class Matrix:
    def __init__(self, rows):
        self.rows = [list(row) for row in rows]

    def __getitem__(self, at):
        i, j = at
        return self.rows[i][j]

    def transpose(self):
""",
    """#include <stdio.h>
#include <string.h>

/* Counts the words of a line. */
static int count_words(const char *line) {
    int n = 0, inside = 0;
    for (; *line; line++) {
""",
    """import { useState } from 'react';

export function Counter({ start = 0, onChange }) {
  const [count, setCount] = useState(start);
  const add = (n) => {
""",
    """public class Account {
    private final String owner;
    private long balance;

    public void withdraw(long amount) throws NotEnough {
        if (amount > balance) {
""",
    """fn parse(input: &str) -> Result<Vec<u32>, ParseError> {
    let mut numbers = Vec::new();
    for part in input.split(',') {
""",
    """SELECT c.name, COUNT(o.id) AS orders, SUM(o.total) AS spent
FROM customers c
LEFT JOIN orders o ON o.customer_id = c.id
WHERE o.created_at >= '2021-01-01'
""",
    """<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <title>Opening hours</title>
  <link rel="stylesheet" href="style.css">
</head>
<body>
""",
    """{
  "id": 1042,
  "type": "sensor",
  "position": {"lat": 47.37, "lon": 8.54},
  "values": [
    {"time": "2022-03-01T06:00:00Z", "temperature": 3.4},
""",
    """#!/bin/sh
# Copies what has changed since yesterday.
set -eu
target=/backup/$(date +%F)
mkdir -p "$target"
find "$HOME" -mtime -1 -type f | while read -r file; do
""",
    """# Getting started

Install the package first:

```sh
pip install sample
```

Then make a file `settings.yaml`:

""",
    """\\begin{theorem}
Let $G$ be a finite group and $H$ a subgroup of $G$. Then the order of $H$ divides that of $G$.
\\end{theorem}
\\begin{proof}
""",
    """date,station,high,low,rain
2020-05-01,North,17.2,8.1,0.0
2020-05-01,South,18.9,9.4,1.2
2020-05-02,North,
""",
    """2023-01-12 08:14:02,117 INFO  server: listening on port 8080
2023-01-12 08:14:09,530 WARN  pool: connection 3 was closed by its peer
2023-01-12 08:14:09,534 ERROR
""",
    # Prose.
    """Dear Ms. Keller,

Thank you for your letter of 3 May. We are sorry to hear that the lamp arrived
broken. Please
""",
    """"You never told me that you could swim," said Tom.

"You never asked." She wrung the water out of her sleeves and looked back at the boat.

""",
    """Abstract. We study how the population of a lake changes if its inflow is reduced. Our model
has two species that compete for the same food, and
""",
    """Question: Maria has 3 boxes with 12 apples each. She gives 7 apples to her neighbour
and divides the rest among 5 children. How many does each child get, and how many are left?
Answer: First,
""",
    """User: I have rice, eggs and some old carrots. What can I cook in twenty minutes?
Assistant:
""",
    """The treaty was signed in 1648 and ended a war that had lasted for thirty years. Among its
consequences were
""",
    # Other languages.
    """Im Winter friert der See hinter dem Haus meistens zu, und dann kommen die Kinder aus dem
Dorf mit ihren Schlittschuhen. Meine Tante kocht ihnen Tee, obwohl sie immer behauptet, dass
""",
    """Sehr geehrte Damen und Herren,

hiermit möchte ich meinen Vertrag zum Ende des Jahres kündigen. Bitte bestätigen Sie mir
""",
    """Chaque matin, avant que les magasins ouvrent, le boulanger s'assoit devant sa porte avec une
tasse de café et regarde passer les gens qui vont au travail. Il connaît
""",
    """Cuando llegaron las lluvias, los vecinos empezaron a reparar los tejados y a guardar la leña
en los patios. Nadie se acordaba de un otoño tan
""",
    """La biblioteca è aperta dal lunedì al venerdì. I libri si possono prendere in prestito per
quattro settimane, ma chi ha bisogno di più tempo
""",
    """O mercado fica na praça velha, onde as mulheres vendem peixe, laranjas e pão ainda quente.
Quando eu era pequeno, o meu avô
""",
    """De trein naar de kust vertrekt om half negen van spoor vier. Reizigers met een fiets moeten
achteraan instappen, want
""",
    """I trädgården bakom skolan växer det äpplen, och varje höst får barnen plocka så många de
vill. Läraren
""",
    """Po śniadaniu dziadek brał kosz i szedł do lasu na grzyby. Wracał dopiero po południu,
zmęczony, ale
""",
    """Jednou za měsíc se sousedé sejdou v hospodě a mluví o tom, co je potřeba opravit. Letos
""",
    """Kesällä aurinko ei laske lainkaan, ja lapset leikkivät ulkona myöhään yöhön. Isoäiti
""",
    """Каждое лето мы ездили к бабушке в деревню. Утром она пекла пироги, а дед чинил старую лодку
и рассказывал, как
""",
    """Η θάλασσα ήταν ήρεμη εκείνο το πρωί και οι ψαράδες γύριζαν στο λιμάνι. Ο πατέρας μου
""",
    """Pazar günleri bütün aile büyük masanın etrafında toplanır. Annem çay koyar, babam gazeteyi
okur ve
""",
    """في المساء يجتمع أهل القرية في الساحة ويشربون الشاي ويتحدثون عن المطر والحصاد. وكان جدي
""",
    """गाँव के स्कूल में केवल दो कमरे हैं, लेकिन बच्चे दूर-दूर से पढ़ने आते हैं। सुबह की घंटी बजते
ही
""",
    """他每天早上六点起床，先去公园跑步，然后回家吃早饭。昨天下雨，所以""",
    """駅前の小さな本屋は祖父の代から続いている。雨の日には客が少ないので、店主は""",
    """할머니는 매일 아침 시장에 가서 채소와 생선을 사 오신다. 오늘은 비가 와서
""",
    """Mỗi buổi sáng, mẹ tôi ra chợ mua rau và cá tươi. Sau đó bà về nhà nấu cơm và
""",
)
