"""Questions whose answers a machine can check: arithmetic, code, extraction to JSON, facts, Chinese.

Knows questions and checks; runs nothing but what a check needs. The list is the same at every call.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from worker.quality.code_check import passes

PER_KIND = 54
"""Four kinds are more than 200 tasks: a model that is at home in no Chinese is still held to enough."""


class TaskKind(StrEnum):
    """What a task asks for."""

    ARITHMETIC = "arithmetic"
    CODE = "code"
    EXTRACTION = "extraction"
    FACTS = "facts"
    CHINESE = "chinese"


@dataclass(frozen=True, slots=True)
class Task:
    """One question."""

    kind: TaskKind
    question: str
    is_right: Callable[[str], bool]
    """Whether an answer's text is right; never raises."""


def all_tasks() -> list[Task]:
    """Return every task, kind by kind."""
    draw = random.Random(20_260)
    return [*_arithmetic(draw), *_code(), *_extraction(draw), *_facts(), *_chinese(draw)]


def _arithmetic(draw: random.Random) -> list[Task]:
    tasks = []
    for index in range(PER_KIND):
        a, b = draw.randint(2, 60), draw.randint(2, 40)
        if index % 3 == 0:
            question, answer = f"What is {a} + {b}?", a + b
        elif index % 3 == 1:
            a, b = max(a, b), min(a, b)
            question, answer = f"What is {a} - {b}?", a - b
        else:
            a, b = a % 12 + 2, b % 9 + 2
            question, answer = f"What is {a} times {b}?", a * b
        question = f"{question} Answer with the number only."
        tasks.append(Task(TaskKind.ARITHMETIC, question, _says_number(answer)))
    return tasks


def _says_number(answer: int) -> Callable[[str], bool]:
    """The last number of the first line that has one counts: models like to repeat the question first."""

    def is_right(text: str) -> bool:
        for line in text.splitlines():
            numbers = re.findall(r"-?\d[\d,]*", line)
            if numbers:
                last: str = numbers[-1]
                return last.replace(",", "") == str(answer)
        return False

    return is_right


_FUNCTIONS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("add(a, b)", "returns the sum of a and b", [("add(2, 3)", "5"), ("add(-1, 1)", "0")]),
    ("multiply(a, b)", "returns the product of a and b", [("multiply(4, 5)", "20")]),
    ("square(x)", "returns x squared", [("square(7)", "49"), ("square(-3)", "9")]),
    ("cube(x)", "returns x to the power of three", [("cube(3)", "27")]),
    ("is_even(n)", "returns True if n is even", [("is_even(4)", "True"), ("is_even(7)", "False")]),
    ("is_odd(n)", "returns True if n is odd", [("is_odd(4)", "False"), ("is_odd(7)", "True")]),
    ("negate(x)", "returns minus x", [("negate(5)", "-5")]),
    ("maximum(a, b)", "returns the larger of a and b", [("maximum(2, 9)", "9"), ("maximum(5, 1)", "5")]),
    ("minimum(a, b)", "returns the smaller of a and b", [("minimum(2, 9)", "2")]),
    ("absolute(x)", "returns the absolute value of x", [("absolute(-4)", "4"), ("absolute(3)", "3")]),
    ("double(x)", "returns twice x", [("double(8)", "16")]),
    ("half(x)", "returns x divided by two", [("half(8)", "4")]),
    ("length(s)", "returns the length of the string s", [("length('abcd')", "4")]),
    ("first(items)", "returns the first element of the list items", [("first([7, 8])", "7")]),
    ("last(items)", "returns the last element of the list items", [("last([7, 8])", "8")]),
    ("reverse(s)", "returns the string s reversed", [("reverse('abc')", "'cba'")]),
    ("upper(s)", "returns the string s in upper case", [("upper('ab')", "'AB'")]),
    ("lower(s)", "returns the string s in lower case", [("lower('AB')", "'ab'")]),
    ("total(items)", "returns the sum of the list items", [("total([1, 2, 3])", "6")]),
    ("average(items)", "returns the mean of the list items", [("average([2, 4])", "3")]),
    ("count(items)", "returns how many elements the list items has", [("count([1, 1, 1])", "3")]),
    ("largest(items)", "returns the largest element of the list items", [("largest([3, 9, 2])", "9")]),
    ("smallest(items)", "returns the smallest element of the list items", [("smallest([3, 9, 2])", "2")]),
    ("sorted_copy(items)", "returns the list items sorted", [("sorted_copy([3, 1, 2])", "[1, 2, 3]")]),
    ("factorial(n)", "returns the factorial of n", [("factorial(5)", "120"), ("factorial(0)", "1")]),
    ("fibonacci(n)", "returns the n-th Fibonacci number, fibonacci(1) = 1", [("fibonacci(7)", "13")]),
    ("is_palindrome(s)", "returns True if s reads the same backwards", [("is_palindrome('abba')", "True")]),
    ("contains(items, x)", "returns True if x is in the list items", [("contains([1, 2], 2)", "True")]),
    ("concat(a, b)", "returns the string a followed by the string b", [("concat('x', 'y')", "'xy'")]),
    ("repeat(s, n)", "returns the string s repeated n times", [("repeat('ab', 2)", "'abab'")]),
    ("is_positive(x)", "returns True if x is greater than zero", [("is_positive(-1)", "False")]),
    ("is_zero(x)", "returns True if x is zero", [("is_zero(0)", "True"), ("is_zero(2)", "False")]),
    ("power(a, b)", "returns a to the power of b", [("power(2, 5)", "32")]),
    ("remainder(a, b)", "returns the remainder of a divided by b", [("remainder(7, 3)", "1")]),
    ("difference(a, b)", "returns a minus b", [("difference(9, 4)", "5")]),
    ("celsius(f)", "converts Fahrenheit to Celsius", [("celsius(212)", "100"), ("celsius(32)", "0")]),
    ("area(w, h)", "returns the area of a rectangle", [("area(3, 4)", "12")]),
    ("perimeter(w, h)", "returns the perimeter of a rectangle", [("perimeter(3, 4)", "14")]),
    ("unique(items)", "returns how many different elements the list items has", [("unique([1, 1, 2])", "2")]),
    ("join_words(words)", "joins a list of words with spaces", [("join_words(['a', 'b'])", "'a b'")]),
    ("split_words(s)", "splits the string s at spaces", [("split_words('a b')", "['a', 'b']")]),
    ("starts_with_a(s)", "returns True if s starts with the letter a", [("starts_with_a('apple')", "True")]),
    ("vowels(s)", "returns how many of the letters aeiou the string s has", [("vowels('banana')", "3")]),
    (
        "evens(n)",
        "returns the list of even numbers from 0 up to and including n",
        [("evens(4)", "[0, 2, 4]")],
    ),
    ("digits(n)", "returns the number of decimal digits of the integer n", [("digits(512)", "3")]),
    ("swap(pair)", "takes a tuple of two and returns it swapped", [("swap((1, 2))", "(2, 1)")]),
    ("clamp(x, low, high)", "limits x to between low and high", [("clamp(9, 0, 5)", "5")]),
    ("countdown(n)", "returns the list of numbers from n down to 1", [("countdown(3)", "[3, 2, 1]")]),
    ("is_negative(x)", "returns True if x is less than zero", [("is_negative(-2)", "True")]),
    ("is_empty(items)", "returns True if the list items is empty", [("is_empty([])", "True")]),
    ("increment(n)", "returns n plus one", [("increment(6)", "7"), ("increment(-1)", "0")]),
    ("sum_to(n)", "returns the sum of the whole numbers from 1 to n", [("sum_to(4)", "10")]),
    ("product(items)", "returns the product of the list items", [("product([2, 3, 4])", "24")]),
    ("without_spaces(s)", "returns the string s without spaces", [("without_spaces('a b c')", "'abc'")]),
]


def _code() -> list[Task]:
    def task(signature: str, what: str, cases: list[tuple[str, str]]) -> Task:
        question = f"Write a Python function {signature} that {what}. Answer with the code only."
        return Task(TaskKind.CODE, question, lambda text: passes(text, cases))

    return [task(*function) for function in _FUNCTIONS]


_NAMES = (
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Elena",
    "Felix",
    "Greta",
    "Hugo",
    "Irene",
    "Jonas",
    "Karla",
    "Leo",
)
_CITIES = ("Paris", "Rome", "Oslo", "Cairo", "Lima", "Delhi", "Tokyo", "Quito", "Madrid", "Vienna")


def _extraction(draw: random.Random) -> list[Task]:
    tasks = []
    for _ in range(PER_KIND):
        name, city, age = draw.choice(_NAMES), draw.choice(_CITIES), draw.randint(18, 80)
        question = (
            f"{name} is {age} years old and lives in {city}.\n"
            'Answer with JSON only, with the keys "name", "age" and "city".'
        )
        tasks.append(Task(TaskKind.EXTRACTION, question, _is_json({"name": name, "age": age, "city": city})))
    return tasks


def _is_json(wanted: dict[str, object]) -> Callable[[str], bool]:
    def is_right(text: str) -> bool:
        start, end = text.find("{"), text.find("}")
        if start < 0 or end < start:
            return False
        try:
            found = json.loads(text[start : end + 1])
        except ValueError:
            return False
        return isinstance(found, dict) and all(str(found.get(key)) == str(wanted[key]) for key in wanted)

    return is_right


_CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Germany": "Berlin", "Spain": "Madrid", "Portugal": "Lisbon",
    "Japan": "Tokyo", "China": "Beijing", "Russia": "Moscow", "Egypt": "Cairo", "Greece": "Athens",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Poland": "Warsaw", "Austria": "Vienna", "Hungary": "Budapest", "Ireland": "Dublin", "Peru": "Lima",
    "Cuba": "Havana", "Kenya": "Nairobi", "Thailand": "Bangkok", "South Korea": "Seoul", "Iran": "Tehran",
}  # fmt: skip
_FACTS = [
    ("What is the largest planet in our solar system?", "Jupiter"),
    ("What planet do we live on?", "Earth"),
    ("What is the chemical formula of water?", "H2O|H₂O"),
    ("What gas do plants take in for photosynthesis?", "carbon dioxide|CO2"),
    ("How many days are in a week?", "7|seven"),
    ("How many months are in a year?", "12|twelve"),
    ("What is the opposite of hot?", "cold"),
    ("What colour do you get by mixing blue and yellow?", "green"),
    ("Which animal is known as the king of the jungle?", "lion"),
    ("What is frozen water called?", "ice"),
    ("Which ocean is the largest?", "Pacific"),
    ("Who wrote Romeo and Juliet?", "Shakespeare"),
    ("Who proposed the theory of relativity?", "Einstein"),
    ("What force pulls objects towards the Earth?", "gravity"),
    ("Which organ pumps blood through the body?", "heart"),
    ("What is the closest star to the Earth?", "Sun"),
    ("On which continent is Egypt?", "Africa"),
    ("On which continent is Brazil?", "South America"),
    ("What is the tallest mountain in the world?", "Everest"),
    ("What metal has the chemical symbol Fe?", "iron"),
    ("What metal has the chemical symbol Au?", "gold"),
    ("How many legs does a spider have?", "8|eight"),
    ("What do bees make?", "honey"),
    ("What language is spoken in Mexico?", "Spanish"),
    ("How many hours are in a day?", "24|twenty-four"),
    ("What is the opposite of day?", "night"),
    ("Which planet is known as the Red Planet?", "Mars"),
    ("On which continent is Japan?", "Asia"),
    ("What is a baby dog called?", "puppy|pup"),
    ("Which season comes after winter?", "spring"),
]


def _facts() -> list[Task]:
    questions = [(f"What is the capital of {country}?", city) for country, city in _CAPITALS.items()]
    return [
        Task(TaskKind.FACTS, f"{question} Answer in a few words.", _mentions(answer))
        for question, answer in questions + _FACTS
    ]


def _mentions(answer: str) -> Callable[[str], bool]:
    """Any of the words, in the first line that says something: a later line is the model going on."""
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in answer.split("|")), re.I)

    def is_right(text: str) -> bool:
        lines = [line for line in text.splitlines() if line.strip()]
        return bool(lines and pattern.search(lines[0]))

    return is_right


_CHINESE_FACTS = [
    ("中国的首都是哪里？", "北京"), ("法国的首都是哪里？", "巴黎"), ("日本的首都是哪里？", "东京"),
    ("英国的首都是哪里？", "伦敦"), ("意大利的首都是哪里？", "罗马"), ("俄罗斯的首都是哪里？", "莫斯科"),
    ("一年有几个月？", "12|十二"), ("一个星期有几天？", "7|七"), ("水的化学式是什么？", "H2O|H₂O"),
    ("太阳系中最大的行星是哪一颗？", "木星"), ("世界上最高的山是什么？", "珠穆朗玛"),
    ("“大”的反义词是什么？", "小"), ("“热”的反义词是什么？", "冷"), ("“高”的反义词是什么？", "低|矮"),
    ("“黑”的反义词是什么？", "白"), ("世界上最大的海洋是哪一个？", "太平洋"),
    ("蜘蛛有几条腿？", "8|八"), ("人有几只手？", "2|两|二"), ("雪是什么颜色的？", "白"),
    ("天空是什么颜色的？", "蓝"), ("草是什么颜色的？", "绿"), ("猫的英文是什么？", "cat"),
    ("狗的英文是什么？", "dog"), ("水的英文是什么？", "water"),
    ("德国的首都是哪里？", "柏林"), ("“上”的反义词是什么？", "下"), ("一天有多少个小时？", "24|二十四"),
    ("人用什么器官看东西？", "眼"), ("冬天过后是什么季节？", "春"), ("书的英文是什么？", "book"),
]  # fmt: skip


def _chinese(draw: random.Random) -> list[Task]:
    tasks = [
        Task(TaskKind.CHINESE, f"{question}请用几个字回答。", _contains(answer))
        for question, answer in _CHINESE_FACTS
    ]
    for _ in range(PER_KIND - len(tasks)):
        a, b = draw.randint(1, 30), draw.randint(1, 30)
        tasks.append(Task(TaskKind.CHINESE, f"{a}加{b}等于多少？只回答数字。", _says_number(a + b)))
    return tasks


def _contains(answer: str) -> Callable[[str], bool]:
    return lambda text: any(word.lower() in text.lower() for word in answer.split("|"))
