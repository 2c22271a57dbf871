"""An older MCP server over stdio that on request dies, leaves a child behind, or prints too much."""

import json
import os
import subprocess
import sys
import time


def send(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


subscribed: set[str] = set()
for line in sys.stdin:
    message = json.loads(line)
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "stubborn"}}
        send({"jsonrpc": "2.0", "id": id, "result": result})
    elif method in ("resources/subscribe", "resources/unsubscribe"):
        (subscribed.add if method.endswith("/subscribe") else subscribed.discard)(params["uri"])
        send({"jsonrpc": "2.0", "id": id, "result": {}})
    elif method == "tools/call":
        name = params["name"]
        if name == "die":
            os.kill(os.getpid(), 9)
        elif name == "child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            send({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": str(child.pid)}]}})
        elif name == "noise":
            sys.stdout.write("this is no message\n")
            sys.stderr.write("complaining \x1b[31m about TOP-SECRET\n" * 1000)
            send({"jsonrpc": "2.0", "id": "nobody", "result": {}})
            send({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "after the noise"}]}})
        elif name == "ask":
            schema = {"type": "object", "properties": {"name": {"type": "string"}}}
            form = {"message": "Who?", "requestedSchema": schema}
            send({"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": form})
            while (answer := json.loads(sys.stdin.readline())).get("id") != "q1":
                if "id" in answer:
                    busy = {"code": -32603, "message": "busy"}
                    send({"jsonrpc": "2.0", "id": answer["id"], "error": busy})
            text = f"hello {answer['result']['content']['name']}" if "result" in answer else "nobody would say"
            send({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
        elif name == "flood":
            sys.stdout.write("x" * (70 << 20))
            sys.stdout.flush()
            time.sleep(60)
        elif name == "much":
            text = "a line of text that is not short\n" * 1_000_000
            send({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
        elif name == "pid":
            send({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": str(os.getpid())}]}})
        elif name == "subscribed":
            send({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": " ".join(subscribed)}]}})
        elif name == "env":
            text = json.dumps(dict(os.environ))
            send({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
    elif id is not None:
        send({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}})
