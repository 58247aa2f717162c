"""pip's configuration, read as pip means it and handed to the resolver."""

import pytest

from kdgat.image.sources import PackageSources, parse_pip_settings, read_pip_sources

TEXT = """\
:env:.index-url='https://user:pass@index.example/simple'
global.cert='/etc/ca.pem'
global.extra-index-url='https://a.example/simple\\nhttps://b.example/simple'
global.index-url='https://pypi.org/simple'
download.timeout='7'
install.no-deps='true'
"""


def test_the_environment_wins_over_files_and_other_commands_do_not_count() -> None:
    settings = parse_pip_settings(TEXT)
    assert settings["index-url"] == "https://user:pass@index.example/simple"
    assert settings["timeout"] == "7"
    assert "no-deps" not in settings


def test_the_resolver_looks_where_pip_looks() -> None:
    environment = PackageSources(parse_pip_settings(TEXT)).for_uv()
    assert environment["UV_DEFAULT_INDEX"] == "https://user:pass@index.example/simple"
    assert environment["UV_INDEX"] == "https://a.example/simple https://b.example/simple"
    assert environment["SSL_CERT_FILE"] == "/etc/ca.pem"
    assert environment["UV_INDEX_STRATEGY"] == "unsafe-best-match"


def test_without_extra_indexes_the_main_one_remains() -> None:
    sources = PackageSources({**parse_pip_settings(TEXT), "find-links": "/wheels"}).without_extra_indexes()
    assert "UV_INDEX" not in sources.for_uv()
    assert "UV_FIND_LINKS" not in sources.for_uv()
    assert "PIP_FIND_LINKS" not in sources.for_pip()
    assert sources.for_pip()["PIP_INDEX_URL"] == "https://user:pass@index.example/simple"


def test_pip_itself_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://more.example/simple")
    assert read_pip_sources().settings["extra-index-url"] == "https://more.example/simple"
