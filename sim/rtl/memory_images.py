"""Files with memory contents, for simulators to read and write."""

from pathlib import Path

__all__ = ["write_image", "read_dump"]


def write_image(path, image, beat_bytes):
    """Writes a memory image, bytes, to a file for `$readmemh`, one bus beat per line.

    The file begins with an address. Simulators then do not warn if the file is shorter than the memory.
    """
    image = bytes(image)
    image += bytes(-len(image) % beat_bytes)
    if beat_bytes > 1:
        import numpy

        words = numpy.frombuffer(image, numpy.uint8).reshape(-1, beat_bytes)[:, ::-1].tobytes()
    else:
        words = image
    Path(path).write_text("@0\n" + words.hex("\n", beat_bytes) + "\n")


def read_dump(path, beat_bytes):
    """Reads a memory image, bytes, from a file of `$writememh`. Unknown digits (x) are read as 0; `axi_memory` counts them as
    violations."""
    import numpy

    text = "".join(line for line in Path(path).read_text().split("\n") if not line.startswith(("//", "@")))
    text = text.replace("x", "0").replace("X", "0")
    return numpy.frombuffer(bytes.fromhex(text), numpy.uint8).reshape(-1, beat_bytes)[:, ::-1].tobytes()
