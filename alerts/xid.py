"""What an XID error means: the numbers that matter to a server, by NVIDIA's catalogue. Pure.

Words and actions after "Analyzing Xid Errors with the Xid Catalog"
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as of October 2025).
"""

from collections.abc import Iterable, Mapping

# Immediate action in the catalogue: reset the GPU, or restart its node. It does no work until then. Besides, 48, which
# a reset follows unless the error was contained; and 154, by which newer drivers say right after any of these what has
# to be done, and which hides them, since only the last number is kept.
FATAL: Mapping[int, str] = {
    46: "the GPU stopped processing; reset it",
    48: "uncorrectable (double-bit) memory error; drain the node, and reset the GPU unless XID 94 says: contained",
    62: "the GPU's internal micro-controller halted; reset the GPU",
    64: "a bad memory row could not be put out of use; reset the GPU, and have it replaced if it comes back",
    79: "the GPU has fallen off the bus; restart the node",
    95: "uncontained memory error: anything on this GPU may be wrong; reset the GPU",
    109: "context switch timed out; reset the GPU",
    110: "security fault; reset the GPU",
    119: "the GPU's system processor (GSP) does not answer; reset the GPU",
    120: "the GPU's system processor (GSP) failed; reset the GPU",
    136: "an NVLink could not be trained; reset the GPU",
    140: "unrecovered ECC error; reset the GPU",
    143: "the GPU could not be initialised; reset it",
    154: "after another XID the driver asks for a recovery action, which its line in the kernel's log names",
    155: "NVLink error that the software has defined; reset the GPU",
    158: "fatal timeout of the GPU; reset it",
}
# The process dies of most of them, the GPU works on.
OTHERS: Mapping[int, str] = {
    13: "an exception in a kernel, as a rule of the application; the process ends",
    31: "an illegal memory access, as a rule of the application; the process ends",
    43: "the process's work was stopped after an error of its own; the GPU is well",
    45: "cleanup after another error, or of a process that was killed; what came before it is in the kernel's log",
    63: "a memory row is to be replaced by a spare one, at the next reset of the GPU",
    74: "NVLink error; a group of GPUs that uses the link may hang or end",
    92: "many correctable memory errors; watch this GPU",
    94: "contained memory error: only the process that used it ends; restart it, and reset the GPU when you can",
    **dict.fromkeys(range(144, 151), "NVLink error; the log's line says whether it was fatal"),
}


def _quoted(numbers: Iterable[int]) -> str:
    return " ".join(f'"{number}"' for number in numbers)


def meaning(words: Mapping[int, str]) -> str:
    """A template that shows what the alert's label `xid` means."""
    numbers: dict[str, list[int]] = {}
    for number, text in words.items():
        numbers.setdefault(text, []).append(number)
    cases = "{{ else ".join(f"if eq $labels.xid {_quoted(its)} }}}}{text}" for text, its in numbers.items())
    return f"{{{{ {cases}{{{{ else }}}}see NVIDIA's catalogue of XID errors{{{{ end }}}}"
