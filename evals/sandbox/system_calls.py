"""Takes system calls from the program that no solution of a problem needs.

    refuse()        # from here on, for this process and all that it starts

What is refused reaches beyond the sandbox or is not covered by its limits: debugging other processes, new
namespaces, mounts, kernel keys, kernel programs, memory that belongs to no process, and sockets of every
family but the Internet's, which namespaces do not hold (Unix sockets in the file system, virtual machine
sockets).  Pairs of connected Unix sockets stay: asyncio needs them.  A refused call fails with EPERM.
"""

from __future__ import annotations

import errno
import os
import struct

from evals.sandbox import linux

_ARCHITECTURE = 0xC000003E  # AUDIT_ARCH_X86_64
_FOREIGN_NUMBERS = 0x40000000  # the x32 calls of that architecture begin here

# By the numbers of x86-64, the one architecture on which this was tried.
_REFUSED = {
    # other processes
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "pidfd_getfd": 438,
    # namespaces, and what a user may do in one of his own
    "unshare": 272,
    "setns": 308,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    # memory that no process has, and that the limit so does not count
    "memfd_create": 319,
    "memfd_secret": 447,
    "shmget": 29,
    "shmat": 30,
    "shmctl": 31,
    "semget": 64,
    "msgget": 68,
    "mq_open": 240,
    "vmsplice": 278,  # pages that a pipe keeps after the process has given them up
    # the kernel itself
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "swapon": 167,
    "swapoff": 168,
    "acct": 163,
    "quotactl": 179,
    "reboot": 169,
    "iopl": 172,
    "ioperm": 173,
}
_MMAP, _SOCKET, _SOCKETPAIR, _CLONE, _CLONE3 = 9, 41, 53, 56, 435
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* that clone takes
_FAMILIES = (2, 10, 16)  # IPv4, IPv6, and netlink, through which interfaces are listed
_UNIX = 1
# The others, datagrams and raw ones, are not bound to their other end: sendto() reaches any socket from them.
_PAIR_KINDS = (1, 5)  # SOCK_STREAM, SOCK_SEQPACKET
_KIND_BITS = 0xF  # of a socket's type; the rest are flags
# What is written to such memory stays when all but a page of it is unmapped, and then no process has it.
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20

# struct seccomp_data; of the arguments, eight bytes each, the low halves
_NUMBER, _ARCH, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 24, 40
# Classic BPF
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000

Instruction = tuple[int, int, int, int]


def refuse() -> bool:
    """Installs the filter for good; False where it is not known for this architecture or not possible.

    Needs ``no_new_privs`` (see :func:`evals.sandbox.linux.drop_privileges`).
    """
    if os.uname().machine != "x86_64" or struct.calcsize("P") != 8:
        return False
    program = _program()
    try:
        linux.filter_system_calls(b"".join(struct.pack("HBBI", *line) for line in program), len(program))
    except OSError:
        return False
    return True


def _program() -> list[Instruction]:
    refused = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allowed = (_RETURN, 0, 0, _ALLOW)
    lines: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _ARCHITECTURE),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _FOREIGN_NUMBERS),
        refused,
    ]
    for number in _REFUSED.values():
        lines += [(_EQUAL, 0, 1, number), refused]
    # Its arguments lie in memory, where a filter cannot look; without it, libraries take clone.
    lines += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    lines += [
        (_EQUAL, 0, 4, _CLONE),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        refused,
        allowed,
    ]
    lines += [
        (_EQUAL, 0, 5, _MMAP),
        (_LOAD, 0, 0, _FOURTH_ARGUMENT),
        (_ANY_BIT, 0, 2, _MAP_SHARED),
        (_ANY_BIT, 0, 1, _MAP_ANONYMOUS),
        refused,
        allowed,
    ]
    lines += [
        (_EQUAL, 0, len(_FAMILIES) + 3, _SOCKET),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *_one_of(_FAMILIES),
        refused,
        allowed,
    ]
    lines += [
        (_EQUAL, 0, len(_PAIR_KINDS) + 7, _SOCKETPAIR),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 1, 0, _UNIX),
        refused,
        (_LOAD, 0, 0, _SECOND_ARGUMENT),
        (_AND, 0, 0, _KIND_BITS),
        *_one_of(_PAIR_KINDS),
        refused,
        allowed,
    ]
    return [*lines, allowed]


def _one_of(values: tuple[int, ...]) -> list[Instruction]:
    """Goes on at the second instruction after these where one of ``values`` is loaded, else at the first."""
    return [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
