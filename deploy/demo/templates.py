"""Question templates of the demo's six skills, in English and German.

Text only: ``skills.py`` fills the placeholders and computes the right answers.
A kind of question (``add``, ``days_after``, ...) belongs to exactly one skill.
"""

from __future__ import annotations

from typing import Final

WEEKDAYS: Final = {
    "en": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "de": ("Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag"),
}

# fmt: off
MONTHS: Final = {
    "en": (
        "January", "February", "March", "April",
        "May", "June", "July", "August",
        "September", "October", "November", "December",
    ),
    "de": (
        "Januar", "Februar", "März", "April",
        "Mai", "Juni", "Juli", "August",
        "September", "Oktober", "November", "Dezember",
    ),
}
# fmt: on

ENGLISH: Final[dict[str, tuple[str, ...]]] = {
    "add": (
        "What is {a} + {b}?",
        "Calculate {a} + {b}.",
        "Add {a} and {b}.",
        "How much is {a} plus {b}?",
        "{a} + {b} = ?",
        "Tell me the sum of {a} and {b}.",
        "I have {a} apples and get {b} more. How many now?",
    ),
    "subtract": (
        "What is {a} - {b}?",
        "Calculate {a} - {b}.",
        "How much is {a} minus {b}?",
        "{a} - {b} = ?",
        "Start at {a} and take away {b}.",
        "I have {a} apples and eat {b}. How many are left?",
        "What remains of {a} after removing {b}?",
    ),
    "multiply": (
        "What is {a} x {b}?",
        "Calculate {a} x {b}.",
        "Multiply {a} by {b}.",
        "How much is {a} times {b}?",
        "{a} x {b} = ?",
        "Tell me the product of {a} and {b}.",
    ),
    "reverse": (
        'Reverse the word "{word}".',
        'Spell "{word}" backwards.',
        'Write "{word}" from back to front.',
        'What is "{word}" backwards?',
        'Read "{word}" from right to left.',
        'Turn the letters of "{word}" around.',
        'Mirror this: "{word}"',
    ),
    "sort_letters": (
        'Sort the letters of "{word}".',
        'Put the letters of "{word}" in alphabetical order.',
        'Order these letters from a to z: "{word}"',
        'Arrange "{word}" alphabetically.',
        'What are the letters of "{word}" in order?',
        'Alphabetise the letters in "{word}", please.',
    ),
    "sort_digits": (
        "Sort these digits: {digits}",
        "Put {digits} in ascending order.",
        "Order {digits} from small to large.",
        "Arrange the digits {digits} by size.",
        "Sort {digits}, smallest first.",
        "What is {digits} in rising order?",
    ),
    "days_after": (
        "Today is {start}. What day is it in {n} days?",
        "Which weekday comes {n} days after {start}?",
        "What day is {n} days after {start}?",
        "If today is {start}, which day is it {n} days from now?",
        "It is {start}. Name the weekday in {n} days.",
        "{start} plus {n} days is which weekday?",
    ),
    "days_before": (
        "Today is {start}. What day was it {n} days ago?",
        "Which weekday comes {n} days before {start}?",
        "What day is {n} days before {start}?",
        "If today is {start}, which day was it {n} days ago?",
        "It is {start}. Name the weekday {n} days earlier.",
        "{start} minus {n} days is which weekday?",
    ),
    "months_after": (
        "Which month comes {n} months after {start}?",
        "It is {start}. Which month is it in {n} months?",
        "What month is {n} months after {start}?",
        "Starting in {start}, name the month {n} months later.",
        "{start} plus {n} months is which month?",
        "A lease starts in {start} and runs {n} months. Which month then?",
    ),
    "to_roman": (
        "Write {number} as a Roman numeral.",
        "What is {number} in Roman numerals?",
        "Convert {number} to Roman numerals.",
        "How did the Romans write {number}?",
        "Give the Roman numeral for {number}.",
        "{number} in Roman?",
    ),
    "from_roman": (
        "Which number is {roman}?",
        "What is {roman} in digits?",
        "Convert the Roman numeral {roman} to a number.",
        "Read the Roman numeral {roman}.",
        "A clock says {roman}. Which number is that?",
        "{roman} as an ordinary number?",
    ),
    "largest": (
        "Which number is the largest? A) {a} B) {b} C) {c}",
        "Pick the biggest: A) {a} B) {b} C) {c}",
        "A) {a} B) {b} C) {c} - which is greatest?",
        "Which is the highest price? A) {a} B) {b} C) {c}",
        "Answer A, B or C. Largest number? A) {a} B) {b} C) {c}",
        "Choose the maximum. A) {a} B) {b} C) {c}",
    ),
    "smallest": (
        "Which number is the smallest? A) {a} B) {b} C) {c}",
        "Pick the least: A) {a} B) {b} C) {c}",
        "A) {a} B) {b} C) {c} - which is smallest?",
        "Which is the lowest price? A) {a} B) {b} C) {c}",
        "Answer A, B or C. Smallest number? A) {a} B) {b} C) {c}",
        "Choose the minimum. A) {a} B) {b} C) {c}",
    ),
}

GERMAN: Final[dict[str, tuple[str, ...]]] = {
    "add": (
        "Was ist {a} + {b}?",
        "Berechne {a} + {b}.",
        "Zähle {a} und {b} zusammen.",
        "Wie viel ist {a} plus {b}?",
        "Rechne: {a} + {b} = ?",
        "Nenne die Summe von {a} und {b}.",
        "Ich habe {a} Äpfel und bekomme {b} dazu. Wie viele sind es?",
    ),
    "subtract": (
        "Was ist {a} - {b}?",
        "Berechne {a} - {b}.",
        "Wie viel ist {a} minus {b}?",
        "Rechne: {a} - {b} = ?",
        "Beginne bei {a} und ziehe {b} ab.",
        "Ich habe {a} Äpfel und esse {b}. Wie viele bleiben übrig?",
        "Was bleibt von {a} ohne {b}?",
    ),
    "multiply": (
        "Was ist {a} x {b}?",
        "Berechne {a} x {b}.",
        "Multipliziere {a} mit {b}.",
        "Wie viel ist {a} mal {b}?",
        "Rechne: {a} x {b} = ?",
        "Nenne das Produkt von {a} und {b}.",
    ),
    "reverse": (
        "Kehre das Wort „{word}“ um.",
        "Buchstabiere „{word}“ rückwärts.",
        "Schreibe „{word}“ von hinten nach vorn.",
        "Was ist „{word}“ rückwärts?",
        "Lies „{word}“ von rechts nach links.",
        "Drehe die Buchstaben von „{word}“ um.",
        "Spiegle das: „{word}“",
    ),
    "sort_letters": (
        "Sortiere die Buchstaben von „{word}“.",
        "Bringe die Buchstaben von „{word}“ in alphabetische Reihenfolge.",
        "Ordne diese Buchstaben von a bis z: „{word}“",
        "Ordne „{word}“ alphabetisch.",
        "Wie lauten die Buchstaben von „{word}“ der Reihe nach?",
        "Bitte ordne die Buchstaben in „{word}“ nach dem Alphabet.",
    ),
    "sort_digits": (
        "Sortiere diese Ziffern: {digits}",
        "Bringe {digits} in aufsteigende Reihenfolge.",
        "Ordne {digits} von klein nach groß.",
        "Ordne die Ziffern {digits} der Größe nach.",
        "Sortiere {digits}, die kleinste zuerst.",
        "Wie lautet {digits} aufsteigend?",
    ),
    "days_after": (
        "Heute ist {start}. Welcher Tag ist in {n} Tagen?",
        "Welcher Wochentag ist {n} Tage nach {start}?",
        "Welcher Tag kommt {n} Tage nach {start}?",
        "Wenn heute {start} ist, welcher Tag ist dann in {n} Tagen?",
        "Es ist {start}. Nenne den Wochentag in {n} Tagen.",
        "{start} plus {n} Tage ergibt welchen Wochentag?",
    ),
    "days_before": (
        "Heute ist {start}. Welcher Tag war vor {n} Tagen?",
        "Welcher Wochentag ist {n} Tage vor {start}?",
        "Welcher Tag liegt {n} Tage vor {start}?",
        "Wenn heute {start} ist, welcher Tag war dann vor {n} Tagen?",
        "Es ist {start}. Nenne den Wochentag {n} Tage früher.",
        "{start} minus {n} Tage ergibt welchen Wochentag?",
    ),
    "months_after": (
        "Welcher Monat kommt {n} Monate nach {start}?",
        "Es ist {start}. Welcher Monat ist in {n} Monaten?",
        "Welcher Monat ist {n} Monate nach {start}?",
        "Beginnend im {start}: Nenne den Monat {n} Monate später.",
        "{start} plus {n} Monate ergibt welchen Monat?",
        "Ein Vertrag beginnt im {start} und läuft {n} Monate. Welcher Monat ist dann?",
    ),
    "to_roman": (
        "Schreibe {number} als römische Zahl.",
        "Was ist {number} in römischen Ziffern?",
        "Wandle {number} in eine römische Zahl um.",
        "Wie schrieben die Römer {number}?",
        "Nenne die römische Zahl für {number}.",
        "{number} auf Römisch?",
    ),
    "from_roman": (
        "Welche Zahl ist {roman}?",
        "Was ist {roman} in Ziffern?",
        "Wandle die römische Zahl {roman} in eine gewöhnliche um.",
        "Lies die römische Zahl {roman}.",
        "Auf der Uhr steht {roman}. Welche Zahl ist das?",
        "{roman} als gewöhnliche Zahl?",
    ),
    "largest": (
        "Welche Zahl ist am größten? A) {a} B) {b} C) {c}",
        "Wähle die größte: A) {a} B) {b} C) {c}",
        "A) {a} B) {b} C) {c} - welche ist die größte?",
        "Welcher Preis ist am höchsten? A) {a} B) {b} C) {c}",
        "Antworte A, B oder C. Größte Zahl? A) {a} B) {b} C) {c}",
        "Wähle das Maximum. A) {a} B) {b} C) {c}",
    ),
    "smallest": (
        "Welche Zahl ist am kleinsten? A) {a} B) {b} C) {c}",
        "Wähle die kleinste: A) {a} B) {b} C) {c}",
        "A) {a} B) {b} C) {c} - welche ist die kleinste?",
        "Welcher Preis ist am niedrigsten? A) {a} B) {b} C) {c}",
        "Antworte A, B oder C. Kleinste Zahl? A) {a} B) {b} C) {c}",
        "Wähle das Minimum. A) {a} B) {b} C) {c}",
    ),
}

TEMPLATES: Final = {"en": ENGLISH, "de": GERMAN}
