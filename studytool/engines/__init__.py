"""Engines: a case in, four runnable legs out, behind the Protocol of `base`."""

from studytool.engines.base import Engine, Terms


def open_engine(terms: Terms) -> Engine:
    """Return the engine of a study, once `preflight` found nothing missing; its library is imported here only."""
    if terms.engine == "cudnn":
        from studytool.engines.cudnn.device import open_device
        from studytool.engines.cudnn.engine import Cudnn

        return Cudnn(terms, open_device())
    if terms.engine == "torch_sdpa":
        from studytool.engines.torch_sdpa import TorchSdpa

        return TorchSdpa()
    from studytool.engines.simulated import Simulated

    return Simulated(terms.simulated)
