"""What `helm test` asks a running gateway: whether it is ready, and, where a tool is named, what that tool answers."""

import json
import os
import sys
import urllib.error
import urllib.request


def asked(url, *, token=None, body=None):
    headers = {"accept": "application/json", "content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - the chart's own address
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - likewise
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        sys.exit(f"{url} does not answer: {error}")


status, text = asked(os.environ["TEST_READY_URL"])
print("ready:", status, text)
if status != 200:
    sys.exit("the gateway is not ready")
if path := os.environ.get("TEST_CALL_URL"):
    body = {"arguments": json.loads(os.environ["TEST_ARGUMENTS"])}
    status, text = asked(path, token=os.environ["TEST_TOKEN"].strip(), body=body)
    is_error = status == 200 and json.loads(text).get("isError")
    print("call:", status, "an error" if is_error else "", text if status != 200 else f"{len(text)} bytes")
    if status != 200 or is_error:
        sys.exit("the tool did not answer as it should")
