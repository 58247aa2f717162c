"""Overrides that make the `quick` preset of the can family a matter of seconds."""

# Every kind of stage, with injected attacks.
ALL_STAGES = (
    "injection.variants=8",
    "injection.duration_s=[5, 8]",
    "training.max_epochs=1",
    "gat.large.hidden=4",
    "gat.large.heads=2",
    "gat.small.hidden=4",
    "autoencoder.large.hidden_dims=[16, 8, 4]",
    "autoencoder.small.hidden_dims=[8, 4]",
    "sampling.graphs_per_epoch=256",
    "curriculum.graphs_per_epoch=256",
)
# One network, and its evaluation.
ONE_NETWORK = (
    "stages=[normal, evaluation]",
    "windows.stride=20",
    "data.validation_fraction=0.3",
    "injection.enabled=false",
    "training.max_epochs=1",
    "training.patience=null",
    "gat.large.hidden=8",
    "gat.large.heads=2",
    "sampling.graphs_per_epoch=256",
)
# One that has learned nothing, so that any other is better.
UNTRAINED = ("training.max_epochs=1", "training.learning_rate=1e-9")
# One that somebody has to stop.
ENDLESS = (*ONE_NETWORK, "stages=[normal]", "training.max_epochs=100000", "training.checkpoint_every_steps=5")


def as_options(*overrides: str) -> list[str]:
    """Write overrides as `-O` options of the command line."""
    return [word for override in overrides for word in ("-O", override)]
