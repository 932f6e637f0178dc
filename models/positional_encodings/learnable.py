"""A trained vector for each position of each side (Gehring et al. 2017; Devlin et al. 2019)."""

from torch import Tensor, nn

from models.positional_encodings.base import InputPosition


class LearnableInput(InputPosition):
    """Adds row t of a table [max_positions, d_model] to the embedding at position t.

    Past the table there is no vector: `TranslationTransformer` enforces max_positions.
    """

    def __init__(self, *, max_positions: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_positions, d_model)
        # As large as embeddings before their factor sqrt(d_model): positions start small.
        nn.init.normal_(self.table.weight, std=d_model**-0.5)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(positions)
