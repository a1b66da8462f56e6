"""Engines: a case in, four runnable legs out, behind the Protocol of `base`."""

from studytool.engines.base import Engine


def open_engine(name: str, simulated: dict[str, int | str]) -> Engine:
    """Return the engine of a study; its library is imported here and nowhere else. ImportError when it is absent."""
    if name == "torch_sdpa":
        from studytool.engines.torch_sdpa import TorchSdpa

        return TorchSdpa()
    from studytool.engines.simulated import Simulated

    return Simulated(simulated)
