"""Signatures of the AXI4, AXI4-Lite and AXI4-Stream ports, with the standard's names (Arm IHI 0022 and IHI 0051)."""

from amaranth.lib.wiring import In, Out, Signature

__all__ = [
    "axi4_read_signature",
    "axi4_write_signature",
    "axi4_lite_signature",
    "axi4_stream_signature",
    "OKAY",
    "DECODE_ERROR",
    "INCR",
    "BUFFERABLE",
]

#: The response without an error.
OKAY = 0b00
#: The response to an access where there is nothing.
DECODE_ERROR = 0b11
#: `AxBURST` of bursts with incrementing addresses.
INCR = 0b01
#: `AxCACHE` of normal, non-cacheable, bufferable memory.
BUFFERABLE = 0b0011


def _address(prefix, address_width, id_width):
    return {
        f"{prefix}id": Out(id_width),
        f"{prefix}addr": Out(address_width),
        f"{prefix}len": Out(8),
        f"{prefix}size": Out(3),
        f"{prefix}burst": Out(2),
        f"{prefix}lock": Out(1),
        f"{prefix}cache": Out(4),
        f"{prefix}prot": Out(3),
        f"{prefix}qos": Out(4),
        f"{prefix}valid": Out(1),
        f"{prefix}ready": In(1),
    }


def axi4_read_signature(*, address_width, data_width, id_width=1):
    """Returns the signature of the AXI4 read channels, seen from the manager."""
    return Signature(
        {
            **_address("ar", address_width, id_width),
            "rid": In(id_width),
            "rdata": In(data_width),
            "rresp": In(2),
            "rlast": In(1),
            "rvalid": In(1),
            "rready": Out(1),
        }
    )


def axi4_write_signature(*, address_width, data_width, id_width=1):
    """Returns the signature of the AXI4 write channels, seen from the manager."""
    return Signature(
        {
            **_address("aw", address_width, id_width),
            "wdata": Out(data_width),
            "wstrb": Out(data_width // 8),
            "wlast": Out(1),
            "wvalid": Out(1),
            "wready": In(1),
            "bid": In(id_width),
            "bresp": In(2),
            "bvalid": In(1),
            "bready": Out(1),
        }
    )


def axi4_lite_signature(*, address_width):
    """Returns the signature of all channels of a 32-bit AXI4-Lite port, seen from the manager."""
    return Signature(
        {
            "awaddr": Out(address_width),
            "awvalid": Out(1),
            "awready": In(1),
            "wdata": Out(32),
            "wstrb": Out(4),
            "wvalid": Out(1),
            "wready": In(1),
            "bresp": In(2),
            "bvalid": In(1),
            "bready": Out(1),
            "araddr": Out(address_width),
            "arvalid": Out(1),
            "arready": In(1),
            "rdata": In(32),
            "rresp": In(2),
            "rvalid": In(1),
            "rready": Out(1),
        }
    )


def axi4_stream_signature(*, data_width, user_width):
    """Returns the signature of an AXI4-Stream of packets, seen from the transmitter (Arm IHI 0051)."""
    return Signature({"tdata": Out(data_width), "tuser": Out(user_width), "tlast": Out(1), "tvalid": Out(1), "tready": In(1)})
