"""Which addresses are on the public internet, and which could be services on the local network.

An IPv6 address can embed an IPv4 one that a gateway extracts: `64:ff9b::7f00:1` is 127.0.0.1 behind
NAT64. The embedded address is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

_INSIDE = (
    IPv4Network("168.63.129.16"),
    IPv4Network("192.0.0.0/24"),
    IPv6Network("fec0::/10"),
    IPv6Network("3fff::/20"),
)
"""Networks that Python may call global although they are not: Azure's services for every virtual
machine, special uses, site-local addresses before `fc00::/7`, and documentation."""
_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_COMPATIBLE = IPv6Network("::/96")
_ISATAP = 0x5EFE
_LOW = (1 << 32) - 1
_NOT_UNIVERSAL = ~(0x0200_0000 | 0x0100_0000)
"""Clears the two bits that may be set before the marker of an ISATAP interface id."""


def is_private_address(text: str) -> bool:
    """Whether a numeric address is anything but a host on the internet."""
    return any(_is_private(address) for address in _unwrapped(ip_address(text)))


def _is_private(address: Address) -> bool:
    # `is_global` is true for some multicast groups.
    special = address.is_multicast or address.is_reserved
    return special or not address.is_global or any(address in network for network in _INSIDE)


def _unwrapped(address: Address) -> Iterator[Address]:
    """The addresses that a connection to `address` may reach."""
    if isinstance(address, IPv4Address):
        yield address
        return
    number = int(address)
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
        return
    if address in _NAT64[0] or (address in _COMPATIBLE and number > 1):
        yield IPv4Address(number & _LOW)
        return
    yield address
    if address in _NAT64[1]:
        yield IPv4Address(number & _LOW)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if (number >> 32 & _NOT_UNIVERSAL) & 0xFFFF_FFFF == _ISATAP:
        yield IPv4Address(number & _LOW)
