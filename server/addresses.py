"""Addresses of callers: which of them are proxies, and which of them are one caller."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from jaxgen.core.errors import ConfigError

type Network = IPv4Network | IPv6Network

EVERYBODY = "*"
_SITE_BITS = 64
"""Bits of an IPv6 address that its owner does not choose: a single host has all the addresses that share them."""


def proxies(text: str) -> tuple[Network, ...]:
    """Return the networks of ``--forwarded-allow-ips``: addresses and networks between commas, or ``*`` for all.

    Raises ConfigError.
    """
    if text.strip() == EVERYBODY:
        return (ip_network("0.0.0.0/0"), ip_network("::/0"))
    return tuple(map(_network, filter(None, (part.strip() for part in text.split(",")))))


def is_any(host: str) -> bool:
    """Whether ``host`` stands for all addresses of the machine."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def unmapped(text: str) -> str:
    """Return the IPv4 address that an IPv6 socket shows as ``::ffff:1.2.3.4``; any other text as it is."""
    prefix = "::ffff:"
    return text.removeprefix(prefix) if text.startswith(prefix) and "." in text else text


def _network(part: str) -> Network:
    try:
        return ip_network(part)
    except ValueError as error:
        raise ConfigError(
            f"--forwarded-allow-ips {part!r} is not an address or network: write 10.0.0.7, 10.0.0.0/8 or fd00::/8, "
            "with commas between several, or * alone"
        ) from error


class Callers:
    """Tells callers apart by their addresses."""

    def __init__(self, trusted: Iterable[Network]) -> None:
        self._trusted = tuple(trusted)
        self.name = lru_cache(maxsize=4096)(self._name)
        """Return the name that an address shares with the other addresses of its host.

        None for a proxy, which has many callers, and for text that is not an IP address.
        """

    def _name(self, text: str) -> str | None:
        try:
            address = ip_address(text.partition("%")[0])
        except ValueError:
            return None
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._trusted):
            return None
        if isinstance(address, IPv6Address):
            return str(ip_network((address, _SITE_BITS), strict=False))
        return str(address)
