"""Runs one untrusted program against one problem's tests.

``runner`` is what the rest of ``evals`` uses.  It starts two fresh interpreters that meet over a
socket: ``keeper`` (isolation, then the program, served by ``candidate``) and ``judge`` (the tests).
This file imports nothing, so that those interpreters start fast.
"""
