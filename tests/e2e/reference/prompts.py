"""What the real model is asked: 20 prompts of different kinds and 3 chats."""

from services.client import Message

_WEATHER = ["rain", "clear sky", "fog until noon", "a hard wind from the west", "snow", "thunder at night"]
_WORK = ["mended the nets", "walked to the mill", "wrote two letters", "counted the sheep", "painted a door"]
_JOURNAL = "\n".join(
    f"Day {day}: {_WEATHER[day * day % 6]}, {3 * day % 17} degrees. We {_WORK[day * 7 % 5]}"
    f" and later we {_WORK[day * 3 % 5]}."
    for day in range(1, 30)
)

PROMPTS: dict[str, str] = {
    "one letter": "A",
    "a newline": "\n",
    "fact": "The capital of France is",
    "prose": "Once upon a time, in a village by the sea, there lived",
    "letter": "Dear Sir or Madam,\n\nI am writing to complain about the train that",
    "question": "Q: Why is the sky blue?\nA:",
    "python": "def fibonacci(n):\n    if n < 2:\n        return",
    "c": "#include <stdio.h>\n\nint main(void) {\n\tfor (int i = 0; i < 10; i++) {\n",
    "sql": "SELECT name, COUNT(*) FROM orders WHERE total > 100 GROUP BY",
    "json": '{"users": [{"id": 1, "name": "Ada", "tags": ["a", "b"]}, {"id": 2,',
    "html": "<!DOCTYPE html>\n<html>\n  <head>\n    <title>Hello &amp; welcome</title>\n",
    "digits": "3.14159265358979 2.71828182845904 1.41421356237309",
    "arithmetic": "12 + 30 = 42\n17 + 8 = 25\n131 + 44 =",
    "list": "Things to pack for a week in the mountains:\n1. Boots\n2. A map\n3.",
    "table": "| city | people |\n|------|-------:|\n| Rome | 2,800,000 |\n| Oslo |",
    "japanese": "日本の首都は東京です。フランスの首都は",
    "mixed scripts": "Привет, мир! 你好，世界！ नमस्ते दुनिया! مرحبا",
    "emoji": "👩‍👩‍👧 🏳️‍🌈 🇩🇪 👍🏽 means that the family",
    "control tokens in words": "The marker <|im_end|> closes a turn, and <|im_start|>",
    "journal": _JOURNAL + "\nDay 30:",
}
CHATS: dict[str, tuple[Message, ...]] = {
    "one turn": (Message("user", "What is the boiling point of water?"),),
    "system": (
        Message("system", "You answer in one short sentence."),
        Message("user", "Name three rivers of Europe."),
    ),
    "several turns": (
        Message("user", "Give me a word that rhymes with house."),
        Message("assistant", "Mouse."),
        Message("user", "And one with 木漏れ日 🌳?"),
    ),
}
