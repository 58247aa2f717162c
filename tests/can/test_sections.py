"""Sections of configuration that older versions wrote."""

import pytest

from kdgat.base import Config, ConfigurationError, validate_config
from kdgat.can.sections import (
    AttentionConfig,
    AutoencoderConfig,
    EvaluationConfig,
    _warn_of_adding_up,
    _warn_of_use_cugraph,
)


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


def test_files_that_still_say_how_evidence_adds_up_are_read_and_one_warning_says_that_it_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _warn_of_adding_up.cache_clear()
    read = validate_config(EvaluationConfig, {"accumulation": "off", "hours_between_false_episodes": 8.0})
    assert read == EvaluationConfig()
    assert not caplog.records
    for old in ({"accumulation": "episodes", "rule": "fixed"}, {"hours_between_false_episodes": 8.0, "rule": "fixed"}):
        assert validate_config(EvaluationConfig, old) == EvaluationConfig(rule="fixed")
    (record,) = caplog.records
    assert "evaluation.hours_between_false_episodes are retired" in record.getMessage()
    with pytest.raises(ConfigurationError, match="unknown key 'accumulations'"):
        validate_config(EvaluationConfig, {"accumulations": "off"})
