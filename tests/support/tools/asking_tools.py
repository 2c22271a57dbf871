"""Tools that ask their caller."""

from gateway import Question, ask_caller

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


async def greet_twice() -> str:
    first = await ask_caller(who=Question.form("Who are you?", NAME))
    second = await ask_caller(who=Question.form("And who else?", NAME))
    return f"hello {first['who']['content']['name']} and {second['who']['content']['name']}"
