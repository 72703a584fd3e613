"""Contents of memories, as simulators read and write them."""

from pathlib import Path

__all__ = ["write_image", "read_dump"]


def write_image(path, image, beat_bytes):
    """Writes `image` (bytes) as one bus beat a line, as `$readmemh` reads it.

    With an address in it, simulators do not complain of a file that is shorter than the memory.
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
    """The bytes that `$writememh` wrote. Of a digit that is unknown (x), which `axi_memory` counts as a violation, comes 0."""
    import numpy

    text = "".join(line for line in Path(path).read_text().split("\n") if not line.startswith(("//", "@")))
    text = text.replace("x", "0").replace("X", "0")
    return numpy.frombuffer(bytes.fromhex(text), numpy.uint8).reshape(-1, beat_bytes)[:, ::-1].tobytes()
