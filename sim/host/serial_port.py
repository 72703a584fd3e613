"""A serial port of this computer, as the transport of a :class:`sim.host.serial_link.SerialLink`."""

import contextlib
import os
import termios
import time

from amaranth_tpu.hw.tools.process import ToolError

from .serial_link import LinkError

__all__ = ["SerialPort"]

_LOOK = 0.0005  # seconds between checks for bytes not yet sent


class SerialPort:
    """A serial port, given by its name or by a URL of pyserial. It is a context manager. Failures raise LinkError, with a message
    of one line.

    The methods are async, like those of other transports, but they block.
    """

    #: Time limit for sending a request, in seconds.
    write_timeout = 10

    def __init__(self, name, baud):
        try:
            import serial
        except ImportError:
            raise ToolError("pyserial, which opens serial ports, is missing; install it with: pip install pyserial") from None
        self._name = name
        with self._failures("could not be opened", "; name the port of a board that you may use, such as /dev/ttyUSB0"):
            self._port = serial.serial_for_url(name, baudrate=baud, timeout=0, write_timeout=self.write_timeout, exclusive=True)
        # An FTDI bridge delays short answers by 16 ms unless its low latency mode is set.
        with contextlib.suppress(Exception):
            self._port.set_low_latency_mode(True)

    @contextlib.contextmanager
    def _failures(self, what, remedy=""):
        import serial

        try:
            yield
        except (OSError, ValueError, termios.error) as error:  # SerialException is an OSError
            text = str(error.args[-1] if isinstance(error, termios.error) else error)
            reason = os.strerror(error.errno) if getattr(error, "errno", None) else text
            if isinstance(error, serial.SerialTimeoutException):
                reason = f"it accepted no bytes for {self.write_timeout} s"
            raise LinkError(f"serial port {self._name} {what}: {' '.join(reason.split())}{remedy}") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._port.close()

    async def send(self, data):
        """Sends bytes. Returns when the bytes have left this computer."""
        import serial

        end = time.monotonic() + self.write_timeout
        with self._failures("failed"):
            self._port.write(data)
            # The port's own `flush` would wait forever if no device accepts the bytes. Ports over a network have no
            # `out_waiting`.
            while getattr(self._port, "out_waiting", 0):
                if time.monotonic() > end:
                    raise serial.SerialTimeoutException
                time.sleep(_LOOK)

    async def receive(self, count, seconds):
        """Returns the bytes received within `seconds`, at most `count` bytes."""
        data, end = b"", time.monotonic() + seconds
        with self._failures("failed"):
            while len(data) < count and (left := end - time.monotonic()) > 0:
                self._port.timeout = left
                data += self._port.read(count - len(data))
        return data

    async def drop(self, seconds):
        """Discards input until the line has been silent for `seconds`. Returns False if this takes more than ten times as
        long."""
        end = time.monotonic() + 10 * seconds
        while time.monotonic() < end:
            if not await self.receive(1 << 16, seconds):
                return True
        return False
