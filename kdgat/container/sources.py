"""Where packages come from: pip's own configuration, for pip and for the resolver, which does not read it."""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kdgat.container.errors import ImageError
from kdgat.container.variants import Variant

TORCH_CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
# Of several sections that set a key, the later one counts, as for `pip download`.
_SECTIONS: Final = ("global", "download", ":env:")
_EXTRA: Final = ("extra-index-url", "find-links")
_TRUE: Final = ("y", "yes", "t", "true", "on", "1")  # as pip reads them


@dataclass(frozen=True)
class PackageSources:
    """What pip is configured with; `settings` holds every key, `index-url` and the like among them."""

    settings: Mapping[str, str]

    def for_variant(self, variant: Variant) -> "PackageSources":
        """Keep the main index alone where a variant asks for it; where pip may use none, the folders: all there is."""
        if variant.uses_extra_indexes:
            return self
        extra = _EXTRA[:1] if self.has_no_index else _EXTRA
        return PackageSources({key: value for key, value in self.settings.items() if key not in extra})

    @property
    def has_no_index(self) -> bool:
        """Return whether pip may only take what lies in folders."""
        return self.settings.get("no-index", "").lower() in _TRUE

    def for_pip(self) -> dict[str, str]:
        """Return the environment in which pip has these settings and no others."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        ours = {f"PIP_{key.replace('-', '_').upper()}": value for key, value in self.settings.items()}
        quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
        return {**clean, **ours, **quiet, "PIP_CONFIG_FILE": os.devnull}

    def for_uv(self) -> dict[str, str]:
        """Return the environment in which uv resolves from the same places by the same rules."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
        indexes = {
            "UV_DEFAULT_INDEX": self.settings.get("index-url", ""),  # PyPI is the default of both
            "UV_INDEX": " ".join(self.settings.get("extra-index-url", "").split()),
        }
        translated = {
            **({} if self.has_no_index else indexes),
            "UV_FIND_LINKS": ",".join(self.settings.get("find-links", "").split()),
            "UV_INSECURE_HOST": " ".join(self.settings.get("trusted-host", "").split()),
            "HTTPS_PROXY": self.settings.get("proxy", ""),
            "SSL_CERT_FILE": self.settings.get("cert", ""),
            "SSL_CLIENT_CERT": self.settings.get("client-cert", ""),
            "UV_HTTP_TIMEOUT": self.settings.get("timeout", self.settings.get("default-timeout", "")),
        }
        # pip takes the best version of all indexes; uv by itself stops at the first index that knows the name.
        rules = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_NO_CONFIG": "1"}
        return {**clean, **{key: value for key, value in translated.items() if value}, **rules}

    def uv_options(self) -> list[str]:
        """Return what uv takes from no variable."""
        return ["--no-index"] if self.has_no_index else []


def read_pip_sources() -> PackageSources:
    """Ask pip for its configuration: files of the machine, the user and the environment, and PIP_ variables."""
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "--no-input", "config", "list"], capture_output=True, text=True, timeout=60
    )
    if answer.returncode:
        raise ImageError(f"pip config list failed: {answer.stderr.strip()[-300:]}; mend pip's configuration")
    return PackageSources(parse_pip_settings(answer.stdout))


def parse_pip_settings(text: str) -> dict[str, str]:
    """Read lines like `global.index-url='https://...'`; keys of other commands than download are left out."""
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if equals and section in found:
            found[section][key] = str(ast.literal_eval(value))
    return {key: value for section in _SECTIONS for key, value in found[section].items()}
