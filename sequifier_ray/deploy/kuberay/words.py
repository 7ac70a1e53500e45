"""Names, images and sizes as Kubernetes takes them; what it would refuse, or never run, is refused here."""

from __future__ import annotations

import re

from sequifier_ray.errors import ConfigError

# More than any machine has.
MOST_CPUS, MOST_GPUS = 4096, 64
# The operator makes names of services and pods from those of jobs; longer ones would not fit into a label.
LONGEST_NAME = 47
_LONGEST_OBJECT_NAME, _LONGEST_REPOSITORY = 253, 255
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# DNS-1123, as for most objects.
_DNS_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_NAME = rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*"
_QUANTITY = re.compile(r"([1-9][0-9]{0,8})(Mi|Gi|Ti)")
_MEBI = {"Mi": 1, "Gi": 1 << 10, "Ti": 1 << 20}
MOST_MEMORY = "100000Ti"
# The grammar of the OCI's distribution specification.
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?P<repository>(?:{_DNS_NAME}(?::(?P<port>[0-9]{{1,5}}))?/)?{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@sha256:(?P<digest>[0-9a-f]{64}))?"
)


def check_name(name: str) -> None:
    """Raise ConfigError unless jobs and their services can be called so."""
    longest = LONGEST_NAME - len("-preprocess")
    if not _LABEL.fullmatch(name) or len(name) > longest:
        raise ConfigError(
            f'--name: found "{name}"; allowed: small letters, digits and "-", a letter first, no "-" last, '
            f"at most {longest} characters: jobs add -preprocess, and KubeRay allows them {LONGEST_NAME}"
        )


def check_object_name(option: str, name: str) -> None:
    """Raise ConfigError unless an object of Kubernetes can be called so."""
    if not re.fullmatch(_DNS_NAME, name) or len(name) > _LONGEST_OBJECT_NAME:
        raise ConfigError(
            f'{option}: found "{name}"; allowed: a name as `kubectl get` shows it, of small letters, digits, '
            f'"-" and ".", at most {_LONGEST_OBJECT_NAME} characters'
        )


def check_quantity(option: str, quantity: str, least: str) -> None:
    """Raise ConfigError unless it is an amount of memory or storage that a machine may have."""
    if not _QUANTITY.fullmatch(quantity):
        raise ConfigError(
            f'{option}: found "{quantity}"; allowed: a whole number with Mi, Gi or Ti, as in 16Gi'
        )
    if not mebibytes(least) <= mebibytes(quantity) <= mebibytes(MOST_MEMORY):
        raise ConfigError(f"{option}: found {quantity}; allowed: from {least} to {MOST_MEMORY}")


def check_image(image: str, ray_version: str) -> None:
    """Raise ConfigError unless every node and every retry gets the same image, with this Ray in it."""
    found = _IMAGE.fullmatch(image)
    if (
        found is None
        or len(found["repository"]) > _LONGEST_REPOSITORY
        or not 0 < int(found["port"] or 1) < 1 << 16
    ):
        raise ConfigError(
            f'--image: found "{image}"; allowed: REPOSITORY:TAG or REPOSITORY@sha256:DIGEST, the repository '
            "in small letters, as in registry.example.org/team/sequifier-ray"
        )
    tag, repository = found["tag"] or "", found["repository"]
    if found["digest"] is None and tag in ("", "latest"):
        raise ConfigError(
            f'--image: "{image}" may be another image tomorrow; name a version as its tag, as in '
            f"{repository}:ray{ray_version}"
        )
    named = re.search(r"(?:^|[^a-z])ray[-_.]?(\d+\.\d+\.\d+)", tag)
    if repository.removeprefix("docker.io/") == "rayproject/ray":
        named = re.match(r"(\d+\.\d+\.\d+)", tag)
    if named and named[1] != ray_version:
        raise ConfigError(
            f'--image: "{image}" has Ray {named[1]}, but Ray {ray_version} is installed here; '
            f"build the image with Ray {ray_version}, or render where Ray {named[1]} is installed"
        )


def mebibytes(quantity: str) -> int:
    """A quantity that ``check_quantity`` lets pass, as a number."""
    return int(quantity[:-2]) * _MEBI[quantity[-2:]]
