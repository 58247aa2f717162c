"""Sections of configuration that older versions wrote."""

import pytest

from kdgat.base import Config, ConfigurationError, validate_config
from kdgat.can.sections import AttentionConfig, AutoencoderConfig, _warn_of_use_cugraph


@pytest.mark.parametrize("model", [AttentionConfig, AutoencoderConfig])
def test_files_that_still_have_the_retired_key_are_read_and_one_warning_says_that_it_does_nothing(
    model: type[Config], caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_use_cugraph.cache_clear()
    assert validate_config(model, {"use_cugraph": False, "edge_features": False}) == model(edge_features=False)
    assert not caplog.records
    for _ in range(2):
        assert validate_config(model, {"use_cugraph": True, "dropout": 0.0}) == model(dropout=0.0)
    assert [record.getMessage()[:22] for record in caplog.records] == ["use_cugraph is retired"]
    with pytest.raises(ConfigurationError, match="unknown key 'use_cugraphs'"):
        validate_config(model, {"use_cugraphs": True})
