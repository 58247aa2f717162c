"""Three ways to make one score of an autoencoder and an attention network, in rising order of freedom."""

import math

import torch
from torch import Tensor, nn

from kdgat.can.models.names import FusionKind
from kdgat.can.models.standardise import Standardise

# Columns of a state: what `window_states` puts side by side for an autoencoder and then an attention network.
STATE_COLUMNS = (
    "autoencoder_score",
    "error_mean",
    "error_max",
    *(f"latent_{name}" for name in ("mean", "deviation", "maximum", "minimum")),
    "gat_logit",
    "node_logit_max",
    "node_logit_mean",
    *(f"embedding_{name}" for name in ("mean", "deviation", "maximum", "minimum")),
)
AUTOENCODER_COLUMN, GAT_COLUMN = STATE_COLUMNS.index("autoencoder_score"), STATE_COLUMNS.index("gat_logit")
# Not configurable: which logit raises an alarm is the evaluation's decision; a reward for another one would mislead.
THRESHOLD = 0.5
FUSED_LIMIT = 15.0  # a fused probability of 1 in float32 has no finite logit


class Fusion(nn.Module):
    """Hold all three fusions over the same standardised states and calibrated member logits."""

    scaling: Tensor

    def __init__(self, hidden: tuple[int, ...], dqn_hidden: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        num_inputs = len(STATE_COLUMNS)
        self.num_actions = num_actions
        self.standardise = Standardise(num_inputs)
        # Rows: autoencoder, attention network; columns: slope, bias of the member's calibration.
        self.register_buffer("scaling", torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        self.weighted_average = WeightedAverage()
        self.mlp = perceptron(num_inputs, hidden, 1)
        self.dqn = perceptron(num_inputs, dqn_hidden, num_actions)

    def member_logits(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the calibrated logits [G] of the autoencoder and of the attention network."""
        columns = states[:, [AUTOENCODER_COLUMN, GAT_COLUMN]] * self.scaling[:, 0] + self.scaling[:, 1]
        return columns[:, 0], columns[:, 1]

    def forward(self, states: Tensor, kind: FusionKind) -> Tensor:
        """Return the fused logit [G] of states [G, S]; an attacked window's is positive."""
        if kind == "weighted_average":
            mixed: Tensor = self.weighted_average(*self.member_logits(states))
            return mixed
        if kind == "mlp":
            logit: Tensor = self.mlp(self.standardise(states)).squeeze(1)
            return logit
        action = self.action_values(states).argmax(dim=1)
        fused = self.fused_probabilities(states).gather(1, action.unsqueeze(1)).squeeze(1)
        return torch.logit(fused.double()).clamp(-FUSED_LIMIT, FUSED_LIMIT).to(states.dtype)

    def action_values(self, states: Tensor) -> Tensor:
        """Return the expected reward [G, A] of each mixing weight."""
        values: Tensor = self.dqn(self.standardise(states))
        return values

    def fused_probabilities(self, states: Tensor) -> Tensor:
        """Return the probability [G, A] that each action gives: alpha from 0 (autoencoder) to 1 (attention network)."""
        autoencoder, attention = (logit.sigmoid().unsqueeze(1) for logit in self.member_logits(states))
        alpha = torch.linspace(0.0, 1.0, self.num_actions, device=states.device).unsqueeze(0)
        return (1.0 - alpha) * autoencoder + alpha * attention

    def is_alarm(self, probability: Tensor) -> Tensor:
        """Decide: the one rule that rewards, validation and use share."""
        return probability > THRESHOLD


class WeightedAverage(nn.Module):
    """A convex mixture of two calibrated logits, scaled and shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.balance = nn.Parameter(torch.tensor(2.0))  # sigmoid of it is the attention network's weight
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.bias = nn.Parameter(torch.tensor(0.0))

    def forward(self, autoencoder: Tensor, attention: Tensor) -> Tensor:
        """Return the mixed logit [G] of logits [G]."""
        weight = self.balance.sigmoid()
        return self.log_scale.exp() * (weight * attention + (1.0 - weight) * autoencoder) + self.bias


def perceptron(num_inputs: int, hidden: tuple[int, ...], num_outputs: int) -> nn.Sequential:
    """Build linear layers with layer norm and ReLU between them."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(num_inputs, width), nn.LayerNorm(width), nn.ReLU()]
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_outputs))


def exploration(step: Tensor, start: float, end: float, decay_steps: float) -> Tensor:
    """Return epsilon after `step` steps: from `start` towards `end`, the distance falling by e every `decay_steps`."""
    return end + (start - end) * torch.exp(-step.to(torch.float32) / max(decay_steps, math.ulp(1.0)))
