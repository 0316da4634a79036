"""The real Claude Code without an account or the internet: it talks to a scripted model server on 127.0.0.1.

Needs `claude` on PATH or `pip install 'greenroom[clis,modelserver]'`. Run it: python examples/real_cli_offline.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from greenroom import Agent, ApprovalPolicy, ClaudeStreamTransport, NativePermissions, TurnRequest
from greenroom.testing.model_server import ModelServer

# Lines in capitals are what the "model" does, one answer for each; `docs/testing.md` lists them.
PROMPT = "BASH echo seen by a real shell > proof.txt\nSAY The file is written."


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="greenroom-example-") as folder, ModelServer() as server:
        work = Path(folder, "work")
        work.mkdir()
        transport = ClaudeStreamTransport(env=server.env(Path(folder, "home")))  # a clean environment and a HOME of its own
        print(f"claude {transport.check()} at {transport.find_binary()}")
        agent = Agent(transport, permissions=NativePermissions.bypass(), approvals=ApprovalPolicy.DENY)
        with agent.session(work) as session:
            turn = session.run(session.prepare_turn(TurnRequest(PROMPT, timeout=60)))
        print(f"{turn.continuity.value}: {turn.result.text!r}")
        print(f"proof.txt: {(work / 'proof.txt').read_text().strip()!r}")
        for role, text in server.seen(-1):
            print(f"the model was shown ({role}) {text!r}")


if __name__ == "__main__":
    main()
