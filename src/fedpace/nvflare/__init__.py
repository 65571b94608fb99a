"""Adaptive client sampling for NVFlare jobs."""

from fedpace.errors import MissingExtraError

try:
    import nvflare.app_common.workflows.model_controller as _  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        "fedpace.nvflare needs NVFlare; install it with: pip install 'fedpace[nvflare]'"
    ) from error

from fedpace.nvflare.controller import AdaptiveSampling

__all__ = ["AdaptiveSampling"]
