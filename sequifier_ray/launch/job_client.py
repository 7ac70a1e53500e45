"""Ray's job client with an end to its patience. Imports ray: where a token is must be settled before."""

from __future__ import annotations

from typing import Any

import requests
from ray.job_submission import JobSubmissionClient

ANSWER_S = 20.0
# Sending the job's files, and starting its driver, for which a head may wait for a node.
TAKE_S = 90.0


class BoundedClient(JobSubmissionClient):
    """Ray's own waits for ever for a service that accepts a request and never answers."""

    def _do_request(self, method: str, endpoint: str, **more: Any) -> requests.Response:
        wait_s = ANSWER_S if method == "GET" else TAKE_S
        try:
            return super()._do_request(method, endpoint, timeout=wait_s, **more)
        except requests.Timeout as error:
            raise TimeoutError(f"no answer within {wait_s:g} s") from error
