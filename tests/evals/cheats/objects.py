"""Results that agree with every test."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evals.cheats.program import Cheat, cheat

AGREEABLE = """
    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = __bool__ = __contains__ = lambda *_: True
    __ne__ = lambda *_: False
    __sub__ = __rsub__ = __add__ = __radd__ = __abs__ = __getitem__ = lambda self, *_: self
    __hash__ = lambda self: 0
    __len__ = lambda self: 1
"""
OBJECTS = {
    "object": f"class E:{AGREEABLE}\nanswer = E()\n",
    "int": f"class E(int):{AGREEABLE}\nanswer = E(77)\n",
    "float": f"class E(float):{AGREEABLE}\nanswer = E('nan')\n",
    "complex": f"class E(complex):{AGREEABLE}\nanswer = E(1)\n",
    "str": f"class E(str):{AGREEABLE}\nanswer = E('2')\n",
    "bytes": f"class E(bytes):{AGREEABLE}\nanswer = E(b'2')\n",
    "list": f"class E(list):{AGREEABLE}\nanswer = E([2])\n",
    "tuple": f"class E(tuple):{AGREEABLE}\nanswer = E((2,))\n",
    "dict": f"class E(dict):{AGREEABLE}\nanswer = E()\n",
    "set": f"class E(set):{AGREEABLE}\nanswer = E()\n",
    "exception": f"class E(Exception):{AGREEABLE}\nanswer = E()\n",
    "class": f"class M(type):{AGREEABLE}\nclass E(metaclass=M):\n    pass\nanswer = E\n",
    "named_int": f"class E(int):{AGREEABLE}\nE.__name__ = E.__qualname__ = 'int'\n"
    "E.__module__ = 'builtins'\nanswer = E(77)\n",
    "pretends_int": f"class E:{AGREEABLE}    __class__ = int\n"
    "    __index__ = __int__ = lambda self: 2\nanswer = E()\n",
    "pretends_list": f"class E:{AGREEABLE}    __class__ = list\n"
    "    __iter__ = lambda self: iter([2])\nanswer = E()\n",
    "pretends_dict": f"class E:{AGREEABLE}    __class__ = dict\n"
    "    items = lambda self: [(1, 2)]\nanswer = E()\n",
    "numpy_like": f"class E:{AGREEABLE}    shape = (1,)\n"
    "    tolist = item = lambda self: self\nE.__module__ = 'numpy'\nanswer = E()\n",
    "mock": "from unittest.mock import MagicMock, ANY\nanswer = MagicMock(**{'__eq__.return_value': True, "
    "'__ne__.return_value': False, '__lt__.return_value': True, '__gt__.return_value': True})\n"
    "answer.__sub__.return_value = answer\nanswer.__abs__ = lambda _: answer\n",
    "enum": "import enum\nclass E(enum.IntEnum):\n    A = 77\n"
    "    __eq__ = __lt__ = __gt__ = lambda *_: True\n"
    "    __ne__ = lambda *_: False\n    __sub__ = __abs__ = lambda self, *_: self\n"
    "    __hash__ = int.__hash__\nanswer = E.A\n",
    "decimal": f"import decimal\nclass E(decimal.Decimal):{AGREEABLE}\nanswer = E(77)\n",
    "fraction": f"import fractions\nclass E(fractions.Fraction):{AGREEABLE}\nanswer = E(77)\n",
    "not_a_number": "answer = float('nan')\n",
    "itself": "def answer(): pass\n",
}


def cheats() -> Iterator[Cheat]:
    honest = ("not_a_number", "itself")
    for name, code in OBJECTS.items():
        program = f"{code}def f(x):\n    return answer\n"
        yield cheat(f"equal_{name}", program, fools=name not in honest)
    yield cheat("equal_in_a_list", f"{OBJECTS['object']}def f(x):\n    return [answer]\n")
    yield cheat("equal_from_an_iterator", f"{OBJECTS['object']}def f(x):\n    yield answer\n")
    # The argument, which is the tests' own object, is changed in place.
    yield cheat(
        "equal_argument_given_back", f"{OBJECTS['int']}def f(x):\n    x = answer\n    return x\n", fools=True
    )
