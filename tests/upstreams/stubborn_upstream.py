"""An older MCP server over stdio that can be told to die, to leave a child behind, and to say too much."""

import json
import os
import subprocess
import sys
import time


def say(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


subscribed: set[str] = set()
for line in sys.stdin:
    message = json.loads(line)
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "stubborn"}}
        say({"jsonrpc": "2.0", "id": id, "result": result})
    elif method in ("resources/subscribe", "resources/unsubscribe"):
        (subscribed.add if method.endswith("/subscribe") else subscribed.discard)(params["uri"])
        say({"jsonrpc": "2.0", "id": id, "result": {}})
    elif method == "tools/call":
        name = params["name"]
        if name == "die":
            os.kill(os.getpid(), 9)
        elif name == "child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            say({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": str(child.pid)}]}})
        elif name == "noise":
            sys.stdout.write("this is no message\n")
            sys.stderr.write("complaining \x1b[31m about TOP-SECRET\n" * 1000)
            say({"jsonrpc": "2.0", "id": "nobody", "result": {}})
            say({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "after the noise"}]}})
        elif name == "ask":
            schema = {"type": "object", "properties": {"name": {"type": "string"}}}
            form = {"message": "Who?", "requestedSchema": schema}
            say({"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": form})
            while (answer := json.loads(sys.stdin.readline())).get("id") != "q1":
                if "id" in answer:
                    busy = {"code": -32603, "message": "busy"}
                    say({"jsonrpc": "2.0", "id": answer["id"], "error": busy})
            text = f"hello {answer['result']['content']['name']}" if "result" in answer else "nobody would say"
            say({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
        elif name == "flood":
            sys.stdout.write("x" * (70 << 20))
            sys.stdout.flush()
            time.sleep(60)
        elif name == "much":
            text = "a line of text that is not short\n" * 1_000_000
            say({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
        elif name == "pid":
            say({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": str(os.getpid())}]}})
        elif name == "subscribed":
            say({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": " ".join(subscribed)}]}})
        elif name == "env":
            text = json.dumps(dict(os.environ))
            say({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
    elif id is not None:
        say({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}})
