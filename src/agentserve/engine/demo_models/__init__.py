"""Two small models that the real engine loads in seconds, made by code on first use.

`hybrid` mixes Gated DeltaNet and full attention, as the models of this field do; its answers depend
on recurrent state more than one cache block back. `mtp` has a multi-token prediction head with an
acceptance between 0 and 1. Both are weights on disk, the same from the same code and numpy.

Importing this package is cheap: numpy and the tokenizer library, which come with vLLM, are
imported by the modules that build. This package must not know torch, vLLM or the supervisor.
"""

from agentserve.engine.demo_models.folder import DEMO_MODEL_NAMES, ensure_demo_model

__all__ = ["DEMO_MODEL_NAMES", "ensure_demo_model"]
