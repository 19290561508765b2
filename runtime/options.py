"""RunOptions: what a user may ask of a run; the launcher hands it to every rank as JSON."""

from __future__ import annotations

from math import inf, isfinite
from typing import Literal

from graphplan.errors import InvalidOption
from graphplan.nouns.base import Noun

Init = Literal["exact", "stage"]
Reference = Literal["batch", "micro-batch"]


class RunOptions(Noun, frozen=True, kw_only=True):
    """The same defaults as the command line."""

    plan: str
    model: str | None = None
    """None only when compute is emulated."""
    settings: dict[str, bool | int | float | str] = {}
    steps: int = 10
    batch_size: int | None = None
    """Samples of a batch; None means as planned."""
    seed: int = 0
    device: str | None = None
    """`cpu`, `cuda`; None takes the accelerator if there is one."""
    tf32: bool = False
    """Let accelerators round float32 products to TF32."""
    deterministic: bool = False
    """Refuse kernels whose sums come out differently each time."""
    bind_cores: bool | None = None
    """Keep every rank on a CPU to its own share of the cores; None: if `graphplan run` starts the
    ranks, as other launchers have ways of their own."""
    init: Init = "exact"
    learning_rate: float = 1e-3
    """Used when the model file has no optimizer()."""
    clip_norm: float | None = None
    check_finite: bool = False
    save: str | None = None
    save_every: int | None = None
    keep_last: int = 2
    """Checkpoints that stay, besides the last one with finite weights."""
    resume: str | None = None
    verify: bool = True
    """Compare the checksums of what is resumed from."""
    emulate: bool = False
    emulate_bytes: int = 1 << 16
    """Larger messages are cut to this: copying them would take the time of other ranks."""
    reference: Reference | None = None
    timeline: str | None = None
    """Where to write the measured timeline."""
    hang_timeout_s: float = 10.0
    as_json: bool = False
    quiet: bool = False

    def check(self) -> None:
        """Refuse what cannot be, before anything starts."""
        if self.model is None and not self.emulate:
            raise InvalidOption(
                "A run needs a model file.",
                remedy="graphplan run plan.json model.py, or --emulate to run without a model.",
            )
        if self.emulate and (self.reference or self.save or self.resume):
            raise InvalidOption(
                "An emulated run trains nothing.",
                remedy="Leave out --reference, --save and --resume, or --emulate.",
            )
        if not 0 < self.hang_timeout_s < inf:
            raise InvalidOption(
                f"--hang-timeout is {self.hang_timeout_s:g} s.",
                remedy="Use --hang-timeout 10, or another number of seconds above 0.",
            )
        is_clipped_well = self.clip_norm is None or 0 < self.clip_norm < inf
        if not (isfinite(self.learning_rate) and is_clipped_well):
            raise InvalidOption(
                f"--lr is {self.learning_rate:g}, --clip-norm is {self.clip_norm}.",
                remedy="Use --lr 0.001 and --clip-norm 1, or other finite numbers above 0.",
            )
        odd = [k for k, v in self.settings.items() if isinstance(v, float) and not isfinite(v)]
        if odd:
            raise InvalidOption(
                f"The setting {odd[0]!r} is not a finite number, which no rank can be told.",
                remedy="Let the model file turn a text such as --set limit=none into it.",
            )
        if self.reference and self.resume:
            raise InvalidOption(
                "--reference trains from the first step on, a resumed run does not.",
                remedy="Leave out --reference or --resume.",
            )
        if self.save_every is not None and self.save is None:
            raise InvalidOption(
                "--save-every needs a folder.", remedy="Add --save FOLDER to say where."
            )
