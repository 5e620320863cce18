"""The crates that the program is linked with, for the licences and the list of components.

With the variable TIDEWIRE_PRODUCT=tidewire-edge: those of the edge build.
"""
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"
PRODUCT = os.environ.get("TIDEWIRE_PRODUCT", "tidewire")


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def linked():
    """Returns the packages of `cargo metadata` that the program is linked with, in the order of their names."""
    tree = run("cargo", "tree", "--locked", "--package", "tidewire", "--edges", "normal", "--prefix", "none",
               "--target", TARGET, "--format", "{p}", *(["--no-default-features"] if PRODUCT == "tidewire-edge" else []))
    used = {tuple(line.split()[:2]) for line in tree.splitlines()}
    packages = json.loads(run("cargo", "metadata", "--format-version", "1", "--locked"))["packages"]
    found = [package for package in packages if (package["name"], "v" + package["version"]) in used]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def checksums():
    """Returns the SHA-256 of each crate of the registry in Cargo.lock, by name and version."""
    found, name, version = {}, None, None
    for line in (ROOT / "Cargo.lock").read_text().splitlines():
        key, _, value = line.partition(" = ")
        value = value.strip('"')
        if key == "name":
            name = value
        elif key == "version":
            version = value
        elif key == "checksum":
            found[name, version] = value
    return found
