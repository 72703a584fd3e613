"""A limit on the memory that packages take for an ONNX model: a file of a few bytes can have a loop that doubles a tensor."""

import contextlib
import threading

__all__ = ["limited_memory"]

_LEAST = 192 << 20  # bytes that any model may take
_LOCK = threading.RLock()  # the limit holds for the process


@contextlib.contextmanager
def limited_memory(model, inputs=0):
    """Limits the memory that the process takes additionally to 192 MB, 6 times the bytes of a model and 64 times those of its
    inputs. Beyond, allocations fail. Systems other than Linux have no limit."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[5]) * resource.getpagesize()
    except (ImportError, OSError):
        yield
        return
    with _LOCK:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limits = [taken + _LEAST + 6 * model + 64 * inputs, *(one for one in (soft, hard) if one != resource.RLIM_INFINITY)]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
