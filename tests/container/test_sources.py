"""pip's configuration, read as pip means it and handed to the resolver."""

import pytest

from kdgat.container.variants import VARIANTS
from kdgat.container.wheels import PackageSources, parse_pip_settings, read_pip_sources

TEXT = """\
:env:.index-url='https://user:pass@index.example/simple'
global.cert='/etc/ca.pem'
global.extra-index-url='https://a.example/simple\\nhttps://b.example/simple'
global.index-url='https://main.example/simple'
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
    sources = PackageSources({**parse_pip_settings(TEXT), "find-links": "/wheels"}).for_variant(VARIANTS["gpu"])
    assert "UV_INDEX" not in sources.for_uv()
    assert "UV_FIND_LINKS" not in sources.for_uv()
    assert "PIP_FIND_LINKS" not in sources.for_pip()
    assert sources.for_pip()["PIP_INDEX_URL"] == "https://user:pass@index.example/simple"


def test_where_pip_may_use_no_index_the_resolver_uses_none_either() -> None:
    settings = {**parse_pip_settings(TEXT), "no-index": "true", "find-links": "/wheels"}
    for sources in (PackageSources(settings), PackageSources(settings).for_variant(VARIANTS["gpu"])):
        assert sources.uv_options() == ["--no-index"]
        assert not {"UV_DEFAULT_INDEX", "UV_INDEX"} & set(sources.for_uv())
        assert sources.for_uv()["UV_FIND_LINKS"] == "/wheels"
    assert PackageSources({**settings, "no-index": "false"}).uv_options() == []


def test_the_certificate_of_the_client_is_shown_by_the_resolver_too() -> None:
    # Both want certificate and key in one file.
    assert PackageSources({"client-cert": "/etc/client.pem"}).for_uv()["SSL_CLIENT_CERT"] == "/etc/client.pem"


@pytest.mark.processes
def test_pip_itself_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://more.example/simple")
    assert read_pip_sources().settings["extra-index-url"] == "https://more.example/simple"
