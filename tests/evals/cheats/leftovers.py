"""Programs that leave files, threads and processes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evals.cheats.program import MARK, WRONG, Cheat, cheat, indented

LEFT_FILES = {
    "folder": f"open('{MARK}', 'w').write('x')",
    "tmp": f"open('/tmp/{MARK}', 'w').write('x')",
    "var_tmp": f"open('/var/tmp/{MARK}', 'w').write('x')",
    "shared_memory": f"open('/dev/shm/{MARK}', 'w').write('x')",
    "home": f"import os\nopen(os.path.expanduser('~/{MARK}'), 'w').write('x')",
    "root": f"open('/{MARK}', 'w').write('x')",
    "tempfile": f"import tempfile\ntempfile.mkstemp(prefix='{MARK}')",
    "above": f"open('../../{MARK}', 'w').write('x')",
    "fifo": f"import os\nos.mkfifo('{MARK}')",
    "unix_socket": f"import socket\nsocket.socket(socket.AF_UNIX).bind('{MARK}')",
    "link": f"import os\nos.symlink('/', '{MARK}')\nos.symlink('{MARK}2', '{MARK}2')",
    "closed_folder": f"import os\nos.mkdir('{MARK}')\nos.mkdir('{MARK}/a')\nos.chmod('{MARK}', 0)",
    "site_packages": f"import json, os\nopen(os.path.join(os.path.dirname(json.__file__), '{MARK}'), 'w')",
}
LEFT_RUNNING = {
    "thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
    "daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "busy_thread": "import threading\ndef busy():\n    while True: pass\n"
    "threading.Thread(target=busy).start()",
    "timer": "import threading\nthreading.Timer(60, print).start()",
    "child": f"import subprocess\nsubprocess.Popen(['sleep', '{MARK}'])",
    "fork": f"import os\nif os.fork() == 0: os.execvp('sleep', ['sleep', '{MARK}'])",
    "double_fork": f"import os\nif os.fork() == 0:\n"
    f"    if os.fork() == 0: os.execvp('sleep', ['sleep', '{MARK}'])\n"
    "    os._exit(0)",
    "session": f"import subprocess\nsubprocess.Popen(['sleep', '{MARK}'], start_new_session=True)",
    "deaf": "import subprocess\n"
    f"subprocess.Popen(['sh', '-c', 'trap \"\" 1 2 15; sleep {MARK}; sleep {MARK}'])",
    "python": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True: time.sleep(1)",
    "pool": "import multiprocessing, time\n"
    "multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)).start()",
}


def cheats() -> Iterator[Cheat]:
    for name, code in LEFT_FILES.items():
        yield cheat(f"leaves_file_{name}", f"try:\n{indented(code)}except OSError:\n    pass\n{WRONG}")
    for name, code in LEFT_RUNNING.items():
        yield cheat(f"leaves_{name}", f"{code}\n{WRONG}")
        yield cheat(f"leaves_{name}_and_exits", f"{code}\nimport os\nos._exit(0)\n", "crashed")
