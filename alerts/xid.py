"""Meanings of the XID errors that matter to a server, by NVIDIA's catalogue. Pure.

Text and actions after "Analyzing Xid Errors with the Xid Catalog"
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as of October 2025).
"""

from collections.abc import Iterable, Mapping

# XIDs whose immediate action in the catalogue is a GPU reset or a node restart; the GPU does no work until then. Also
# 48, which needs a reset unless the error was contained; and 154, which newer drivers report right after any of these
# to name the action, and which hides them, because only the last number is exported.
FATAL: Mapping[int, str] = {
    46: "the GPU stopped processing; reset it",
    48: "uncorrectable (double-bit) memory error; drain the node, and reset the GPU unless XID 94 follows (contained)",
    62: "the GPU's internal micro-controller halted; reset the GPU",
    64: "a bad memory row could not be retired; reset the GPU, and have it replaced if it comes back",
    79: "the GPU has fallen off the bus; restart the node",
    95: "uncontained memory error: anything on this GPU may be wrong; reset the GPU",
    109: "context switch timed out; reset the GPU",
    110: "security fault; reset the GPU",
    119: "the GPU's system processor (GSP) does not answer; reset the GPU",
    120: "the GPU's system processor (GSP) failed; reset the GPU",
    136: "an NVLink could not be trained; reset the GPU",
    140: "unrecovered ECC error; reset the GPU",
    143: "the GPU could not be initialised; reset it",
    154: "after another XID the driver asks for a recovery action, which its line in the kernel log names",
    155: "software-defined NVLink error; reset the GPU",
    158: "fatal timeout of the GPU; reset it",
}
# Most of these end the process; the GPU keeps working.
OTHERS: Mapping[int, str] = {
    13: "an exception in a CUDA kernel, usually an application error; the process ends",
    31: "an illegal memory access, usually an application error; the process ends",
    43: "the process was stopped after an error of its own; the GPU is healthy",
    45: "cleanup after another error or a killed process; the kernel log has the cause",
    63: "a memory row will be replaced by a spare row at the next GPU reset",
    74: "NVLink error; a group of GPUs that uses the link may hang or end",
    92: "many correctable memory errors; watch this GPU",
    94: "contained memory error: only the process that used it ends; restart it, and reset the GPU when you can",
    **dict.fromkeys(range(144, 151), "NVLink error; the kernel log says whether it was fatal"),
}


def _quoted(numbers: Iterable[int]) -> str:
    return " ".join(f'"{number}"' for number in numbers)


def meaning(words: Mapping[int, str]) -> str:
    """Return a template that shows the meaning of the alert's label `xid`."""
    numbers: dict[str, list[int]] = {}
    for number, text in words.items():
        numbers.setdefault(text, []).append(number)
    cases = "{{ else ".join(f"if eq $labels.xid {_quoted(its)} }}}}{text}" for text, its in numbers.items())
    return f"{{{{ {cases}{{{{ else }}}}see NVIDIA's catalogue of XID errors{{{{ end }}}}"
