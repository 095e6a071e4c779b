"""Which network addresses belong to this machine or its neighbours, whatever they are wrapped in.

An IPv6 address can carry an IPv4 one that a gateway unwraps: `64:ff9b::7f00:1` is 127.0.0.1 behind
NAT64. Such an address is judged by what it carries.
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
"""What Python may call global and is not: the services that Azure offers every virtual machine,
special uses, what networks had for themselves before `fc00::/7`, and documentation."""
_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_COMPATIBLE = IPv6Network("::/96")
_ISATAP = 0x5EFE
_LOW = (1 << 32) - 1
_NOT_UNIVERSAL = ~(0x0200_0000 | 0x0100_0000)
"""Clears the two bits that an ISATAP interface id may set before its marker."""


def is_private_address(text: str) -> bool:
    """Whether an address, in numbers, is anything but a host on the internet."""
    return any(_is_private(address) for address in _unwrapped(ip_address(text)))


def _is_private(address: Address) -> bool:
    # `is_global` is true for some multicast groups.
    special = address.is_multicast or address.is_reserved
    return special or not address.is_global or any(address in network for network in _INSIDE)


def _unwrapped(address: Address) -> Iterator[Address]:
    """The addresses that a connection to `address` may end at."""
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
