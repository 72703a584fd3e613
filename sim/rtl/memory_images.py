"""Files with memory contents, for simulators to read and write."""

from pathlib import Path

__all__ = ["image_text", "write_image", "read_dump"]


def image_text(image, beat_bytes):
    """Returns a memory image, bytes, as a text for `$readmemh`, one bus beat per line.

    The text begins with an address. Simulators then do not warn if it is shorter than the memory.
    """
    image = bytes(image)
    image += bytes(-len(image) % beat_bytes)
    if beat_bytes > 1:
        import numpy

        words = numpy.frombuffer(image, numpy.uint8).reshape(-1, beat_bytes)[:, ::-1].tobytes()
    else:
        words = image
    return "@0\n" + words.hex("\n", beat_bytes) + "\n"


def write_image(path, image, beat_bytes):
    """Writes the :func:`image_text` of a memory image to a file."""
    Path(path).write_text(image_text(image, beat_bytes))


def read_dump(path, beat_bytes):
    """Reads a memory image, bytes, from a file of `$writememh`. Unknown digits (x) are read as 0; `axi_memory` counts them as
    violations."""
    import numpy

    text = "".join(line for line in Path(path).read_text().split("\n") if not line.startswith(("//", "@")))
    text = text.replace("x", "0").replace("X", "0")
    return numpy.frombuffer(bytes.fromhex(text), numpy.uint8).reshape(-1, beat_bytes)[:, ::-1].tobytes()
