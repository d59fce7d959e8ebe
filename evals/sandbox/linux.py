"""The few Linux calls that Python does not wrap: namespaces, mounts, prctl, capabilities.

Every function raises OSError with the kernel's errno when the kernel refuses.
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_MNT_DETACH = 0x2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2

# The same number on every architecture except alpha.
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leaves the namespaces in ``flags`` (``CLONE_NEW*``) for fresh ones."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """mount(2)."""
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = None if options is None else options.encode()
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), data), f"mount {target}")


def unmount(target: str) -> None:
    """Takes the mount at ``target`` away, at once from the tree and in truth when it is unused."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(_MNT_DETACH)), f"umount {target}")


def set_read_only(path: str, read_only: bool, recursive: bool) -> None:
    """Makes the mount at ``path`` read-only or writable (mount_setattr, Linux 5.12)."""
    attributes = _MountAttributes()
    if read_only:
        attributes.set = _MOUNT_ATTR_RDONLY
    else:
        attributes.clear = _MOUNT_ATTR_RDONLY
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(path),
        ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(result, f"mount_setattr {path}")


def _prctl(option: int, value: int, what: str) -> None:
    # Variadic: every argument must be as wide as the kernel reads it.
    unused = ctypes.c_ulong(0)
    _check(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), unused, unused, unused), what)


def die_with_parent(signal_number: int) -> None:
    """Asks for a signal when the parent dies.  Lost when the process changes its user."""
    _prctl(_PR_SET_PDEATHSIG, signal_number, "PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Makes this process the new parent of descendants that lose theirs."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def forbid_tracing(forbid: bool = True) -> None:
    """Keeps processes of the same user from attaching to this one or reading its memory, or lets them."""
    _prctl(_PR_SET_DUMPABLE, 0 if forbid else 1, "PR_SET_DUMPABLE")


def filter_system_calls(program: bytes, instructions: int) -> None:
    """Lets the classic BPF ``program`` decide on every system call of this process, for good (seccomp)."""
    code = ctypes.create_string_buffer(program, len(program))
    header = _FilterProgram(instructions, ctypes.addressof(code))
    unused = ctypes.c_ulong(0)
    result = _libc.prctl(
        ctypes.c_int(_PR_SET_SECCOMP),
        ctypes.c_ulong(_SECCOMP_MODE_FILTER),
        ctypes.byref(header),
        unused,
        unused,
    )
    _check(result, "PR_SET_SECCOMP")


def drop_privileges() -> None:
    """Gives up all capabilities, for good: set-user-id programs cannot bring them back."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, nothing), "capset")
